//! Packed nvlists: the decoder, the view, and the operations of a decoded list.

use ::nvlist::{Encoding, Error, JsonStyle, Limits, NvList, NvListRef, ValueRef};

const LIMITS: Limits = Limits { depth: 32, pairs: 20_000, bytes: 16 << 20 };

/// Decodes bytes as a packed nvlist.
///
/// # Panics
/// On a bug in the library: the decoder and the view disagree, a list exceeds its limits, or it does not survive packing.
pub fn fuzz_nvlist(data: &[u8]) {
    let view = NvListRef::new(data).and_then(|view| view.check().map(|end| (view, end)));
    match (NvList::unpack_with(data, &LIMITS), view) {
        (Ok((list, consumed)), Ok((view, end))) => {
            assert_eq!(consumed, end, "the view ends elsewhere");
            walk(&view, 64);
            exercise(data, list);
        }
        // the decoder is stricter than the view, and has narrower limits
        (Err(Error::Limit { .. } | Error::Duplicate { .. }), Ok((view, _))) => walk(&view, 64),
        (Err(_), Err(_)) => {
            if let Ok(view) = NvListRef::new(data) {
                walk(&view, 64);
            }
        }
        (decoded, checked) => {
            panic!("decoder and view disagree: {:?}, {:?}", decoded.map(|d| d.1), checked.map(|c| c.1));
        }
    }
}

/// Visits everything in the view, down to a depth.
fn walk(view: &NvListRef<'_>, depth: usize) {
    for pair in view.pairs().map_while(Result::ok) {
        match pair.value {
            ValueRef::NvList(list) if depth > 0 => walk(&list, depth - 1),
            ValueRef::NvListArray(lists) if depth > 0 => {
                lists.iter().map_while(Result::ok).for_each(|list| walk(&list, depth - 1));
            }
            ValueRef::StringArray(strings) => assert_eq!(strings.iter().count(), strings.len()),
            ValueRef::NvList(_) | ValueRef::NvListArray(_) => {}
            leaf => assert!(leaf.to_value().is_ok()),
        }
    }
}

fn exercise(data: &[u8], mut list: NvList) {
    assert!(list.heap_size() <= LIMITS.bytes, "{} bytes of heap", list.heap_size());
    // a decoded list can be packed, and packs to the same bytes from then on
    let Ok((encoding, endian)) = Encoding::of(data) else {
        return;
    };
    for encoding in [encoding, Encoding::Native, Encoding::Xdr] {
        let packed = list.pack(encoding, endian).unwrap_or_else(|e| panic!("does not pack: {e}"));
        let again = NvList::unpack(&packed).unwrap_or_else(|e| panic!("does not unpack: {e}"));
        assert!(again.pack(encoding, endian).as_ref() == Ok(&packed), "packs differently");
    }
    if data.len() < 16 << 10 {
        let _ = (list.to_json(), list.to_json_style(JsonStyle::Plain), list.dump(0));
    }
    let names: Vec<Vec<u8>> = list.iter_bytes().map(|(name, _)| name.to_vec()).collect();
    assert_eq!(names.len(), list.len());
    for name in &names {
        assert!(list.contains(name));
        assert!(list.remove(name).is_some());
    }
    assert!(list.is_empty());
}
