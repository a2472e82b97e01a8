//! Lists that OpenZFS's libnvpair packed (`data/make.c`): read, packed again, printed.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::PathBuf;

use nvlist::{DataType, Encoding, Endian, Error, JsonStyle, NvList, NvListRef, Uniqueness, Value, ValueRef};

fn sample(name: &str) -> Vec<u8> {
    fs::read(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)).unwrap()
}

const NAMES: [&str; 5] = ["none", "types", "signs", "empties", "nested"];

#[test]
fn both_encodings_give_the_same_list() {
    for name in NAMES {
        let xdr = NvList::unpack(&sample(&format!("{name}.xdr"))).unwrap();
        let native = NvList::unpack(&sample(&format!("{name}.native"))).unwrap();
        assert_eq!(xdr, native, "{name}");
    }
}

#[test]
fn packs_to_the_same_bytes() {
    for name in NAMES {
        for (suffix, encoding) in [("xdr", Encoding::Xdr), ("native", Encoding::Native)] {
            let packed = sample(&format!("{name}.{suffix}"));
            assert_eq!(Encoding::of(&packed), Ok((encoding, Endian::Little)));
            let (list, consumed) = NvList::unpack_with(&packed, &Default::default()).unwrap();
            let again = list.pack(encoding, Endian::Little).unwrap();
            if (name, suffix) == ("signs", "xdr") {
                // user space sign-extends 8- and 16-bit numbers; the kernel does not, and neither do we: same length, other bytes
                assert_eq!(again.len(), packed.len());
                assert_eq!(NvList::unpack(&again).unwrap(), list);
            } else {
                assert_eq!(again, packed, "{name}.{suffix}");
            }
            assert!(packed[consumed..].iter().all(|b| *b == 0), "{name}.{suffix}");
            assert_eq!(NvListRef::new(&packed).unwrap().check(), Ok(consumed), "{name}.{suffix}");
        }
    }
}

#[test]
fn the_other_byte_order_reads_the_same() {
    for name in NAMES {
        let list = NvList::unpack(&sample(&format!("{name}.native"))).unwrap();
        for encoding in [Encoding::Native, Encoding::Xdr] {
            let big = list.pack(encoding, Endian::Big).unwrap();
            assert_eq!(big[1], 0);
            assert_eq!(NvList::unpack(&big).unwrap(), list, "{name} {encoding:?}");
            assert_eq!(NvListRef::new(&big).unwrap().to_nvlist().unwrap(), list, "{name} {encoding:?}");
        }
    }
}

#[test]
fn json_and_text_are_those_of_openzfs() {
    for name in NAMES {
        let list = NvList::unpack(&sample(&format!("{name}.xdr"))).unwrap();
        assert_eq!(list.to_json().into_bytes(), sample(&format!("{name}.json")), "{name}");
        assert_eq!(list.dump(4).into_bytes(), sample(&format!("{name}.txt")), "{name}");
    }
}

#[test]
fn plain_json_is_json() {
    let list = NvList::unpack(&sample("types.xdr")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&list.to_json_style(JsonStyle::Plain)).unwrap();
    assert_eq!(json["uint64"], 18_446_744_073_709_551_610u64);
    assert_eq!(json["double"], -1234.5678);
    assert!(json["escapes"].as_str().unwrap().ends_with("grüß € 🐧"));
    let odd: NvList = [("nan", f64::NAN), ("inf", f64::INFINITY)].into_iter().collect();
    assert_eq!(odd.to_json_style(JsonStyle::Plain), r#"{"nan":null,"inf":null}"#);
    assert_eq!(odd.to_json(), r#"{"nan":nan,"inf":inf}"#);
}

#[test]
fn every_type_is_read() {
    for suffix in ["xdr", "native"] {
        let list = NvList::unpack(&sample(&format!("signs.{suffix}"))).unwrap();
        assert_eq!(list.get_bool("boolean"), Some(true));
        assert_eq!(list.get_bool("no"), Some(false));
        assert_eq!(list.get_byte("byte"), Some(0xfe));
        assert_eq!(list.get_i8("int8"), Some(-2));
        assert_eq!(list.get_u8("uint8"), Some(0xfd));
        assert_eq!(list.get_i16("int16"), Some(-300));
        assert_eq!(list.get_u16("uint16"), Some(65530));
        assert_eq!(list.get_i32("int32"), Some(-70_000));
        assert_eq!(list.get_u32("uint32"), Some(4_294_967_290));
        assert_eq!(list.get_i64("int64"), Some(-5_000_000_000));
        assert_eq!(list.get_u64("uint64"), Some(18_446_744_073_709_551_610));
        assert_eq!(list.get_hrtime("hrtime"), Some(1_234_567_890_123));
        assert_eq!(list.get_f64("double"), Some(-1234.5678));
        assert_eq!(list.get_str("string"), Some("tank/home@monday"));
        assert_eq!(list.get_bool_array("boolean array"), Some(&[true, false, true][..]));
        assert_eq!(list.get_byte_array("byte array"), Some(&[1, 2, 255, 4, 5][..]));
        assert_eq!(list.get_i8_array("int8 array"), Some(&[1, -1, 3][..]));
        assert_eq!(list.get_u8_array("uint8 array"), Some(&[1, 255, 3, 4, 5, 6, 7, 8, 9][..]));
        assert_eq!(list.get_i16_array("int16 array"), Some(&[1, -1000][..]));
        assert_eq!(list.get_u16_array("uint16 array"), Some(&[1, 65000, 3][..]));
        assert_eq!(list.get_i32_array("int32 array"), Some(&[-1, 2, 3][..]));
        assert_eq!(list.get_u32_array("uint32 array"), Some(&[4_000_000_000][..]));
        assert_eq!(list.get_i64_array("int64 array"), Some(&[-1, 1 << 62][..]));
        assert_eq!(list.get_u64_array("uint64 array"), Some(&[1 << 63, 2, 3][..]));
        let strings = list.get_string_array("string array").unwrap();
        assert_eq!(strings.iter().filter_map(|s| s.to_str()).collect::<Vec<_>>(), ["one", "", "three"]);
        assert_eq!(list.require_u64("gone"), Err(Error::Missing { name: "gone".into() }));
        assert_eq!(
            list.require_u64("string"),
            Err(Error::WrongType { name: "string".into(), expected: DataType::Uint64, found: DataType::String })
        );
    }
}

#[test]
fn the_view_finds_what_the_list_has() {
    for suffix in ["xdr", "native"] {
        for name in NAMES {
            let packed = sample(&format!("{name}.{suffix}"));
            let list = NvList::unpack(&packed).unwrap();
            let view = NvListRef::new(&packed).unwrap();
            compare(&view, &list);
        }
        let packed = sample(&format!("nested.{suffix}"));
        let inner = NvListRef::new(&packed).unwrap().get_nvlist("inner").unwrap().unwrap();
        assert_eq!(inner.get_u64("after").unwrap(), Some(9));
        let leaf = inner.get_nvlist("leaf").unwrap().unwrap();
        assert_eq!(leaf.get_u64("after").unwrap(), Some(7));
        assert!(leaf.get("gone").unwrap().is_none());
    }
}

fn compare(view: &NvListRef<'_>, list: &NvList) {
    assert_eq!(view.uniqueness(), list.uniqueness());
    let mut pairs = list.iter_bytes();
    for pair in view.pairs() {
        let pair = pair.unwrap();
        let (name, value) = pairs.next().unwrap();
        assert_eq!(pair.name, name);
        assert_eq!(&pair.value.to_value().unwrap(), value);
        match (&pair.value, value) {
            (ValueRef::NvList(view), Value::NvList(list)) => compare(view, list),
            (ValueRef::NvListArray(views), Value::NvListArray(lists)) => {
                assert_eq!(views.len(), lists.len());
                for (view, list) in views.iter().zip(lists) {
                    compare(&view.unwrap(), list);
                }
            }
            _ => {}
        }
    }
    assert!(pairs.next().is_none());
}

#[test]
fn uniqueness_and_order_survive() {
    let list = NvList::unpack(&sample("nested.xdr")).unwrap();
    let inner = list.require_nvlist("inner").unwrap();
    let typed = inner.require_nvlist("typed").unwrap();
    assert_eq!(typed.uniqueness(), Uniqueness::NameAndType);
    assert_eq!(typed.len(), 3);
    assert_eq!(typed.get_u64("same"), Some(4));
    assert_eq!(typed.get_str("same"), Some("two"));
    assert_eq!(typed.get_bool("same"), Some(true));
    let multi = inner.require_nvlist("multi").unwrap();
    assert_eq!(multi.uniqueness(), Uniqueness::None);
    let all: Vec<_> = multi.iter().map(|(n, v)| (n, v.as_u64().unwrap())).collect();
    assert_eq!(all, [("again", 1), ("other", 2), ("again", 3)]);
}
