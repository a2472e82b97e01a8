//! Random operations on a list and on a plain vector of pairs give the same results, in every mode of uniqueness.
#![allow(clippy::unwrap_used)]

use nvlist::{DataType, Encoding, Endian, Limits, NvList, NvListRef, NvString, Uniqueness, Value};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    Insert(Vec<u8>, Value),
    Remove(Vec<u8>),
    RemoveTyped(Vec<u8>, DataType),
    RemoveAll(Vec<u8>),
    Change(Vec<u8>, u64),
}

/// The naive list: every operation walks all pairs.
struct Model {
    uniqueness: Uniqueness,
    pairs: Vec<(Vec<u8>, Value)>,
}

impl Model {
    fn apply(&mut self, op: &Op, list: &mut NvList) {
        match op {
            Op::Insert(name, value) => {
                match self.uniqueness {
                    Uniqueness::None => {}
                    Uniqueness::Name => self.pairs.retain(|(n, _)| n != name),
                    Uniqueness::NameAndType => {
                        self.pairs.retain(|(n, v)| n != name || v.data_type() != value.data_type());
                    }
                }
                self.pairs.push((name.clone(), value.clone()));
                list.insert(name, value.clone());
            }
            Op::Remove(name) => {
                let at = self.pairs.iter().position(|(n, _)| n == name);
                assert_eq!(list.remove(name), at.map(|at| self.pairs.remove(at).1));
            }
            Op::RemoveTyped(name, ty) => {
                let at = self.pairs.iter().position(|(n, v)| n == name && v.data_type() == *ty);
                assert_eq!(list.remove_typed(name, *ty), at.map(|at| self.pairs.remove(at).1));
            }
            Op::RemoveAll(name) => {
                let before = self.pairs.len();
                self.pairs.retain(|(n, _)| n != name);
                assert_eq!(list.remove_all(name), before - self.pairs.len());
            }
            Op::Change(name, number) => {
                let ours = self.pairs.iter_mut().find(|(n, _)| n == name);
                match (ours, list.get_mut(name)) {
                    (Some((_, a)), Some(b)) if self.uniqueness != Uniqueness::NameAndType => {
                        *a = Value::Uint64(*number);
                        *b = Value::Uint64(*number);
                    }
                    (a, b) => assert_eq!(a.map(|(_, a)| a), b),
                }
            }
        }
    }

    fn compare(&self, list: &NvList, names: &[Vec<u8>]) {
        assert_eq!(list.len(), self.pairs.len());
        assert_eq!(list.is_empty(), self.pairs.is_empty());
        assert_eq!(list.iter_bytes().len(), self.pairs.len());
        assert!(list.iter_bytes().eq(self.pairs.iter().map(|(n, v)| (n.as_slice(), v))));
        for name in names {
            let mut mine = self.pairs.iter().filter(|(n, _)| n == name).map(|(_, v)| v);
            let typed = mine.clone().find(|v| v.data_type() == DataType::Uint64);
            assert_eq!(list.get_typed(name, DataType::Uint64), typed);
            assert_eq!(list.get(name), mine.next());
            assert_eq!(list.contains(name), self.pairs.iter().any(|(n, _)| n == name));
        }
    }
}

fn names(count: usize) -> Vec<Vec<u8>> {
    (0..count)
        .map(|i| match i % 5 {
            0 => format!("{i}").into_bytes(),
            1 => format!("a much longer name that will fill the arena quickly: {i}").into_bytes(),
            2 => vec![0xff, i as u8 | 1, 0x80],
            3 => vec![b'x'; i],
            _ => format!("org.example:p{i}").into_bytes(),
        })
        .collect()
}

fn small_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u64>().prop_map(Value::Uint64),
        "[a-z]{0,12}".prop_map(Value::from),
        Just(Value::Boolean),
        proptest::collection::vec(any::<u32>(), 0..4).prop_map(Value::Uint32Array),
    ]
}

fn ops(count: usize, len: usize) -> impl Strategy<Value = Vec<Op>> {
    let name = proptest::sample::select(names(count));
    let ty = proptest::sample::select(vec![DataType::Uint64, DataType::String, DataType::Boolean]);
    let op = prop_oneof![
        5 => (name.clone(), small_value()).prop_map(|(n, v)| Op::Insert(n, v)),
        3 => name.clone().prop_map(Op::Remove),
        1 => (name.clone(), ty).prop_map(|(n, t)| Op::RemoveTyped(n, t)),
        1 => name.clone().prop_map(Op::RemoveAll),
        1 => (name, any::<u64>()).prop_map(|(n, v)| Op::Change(n, v)),
    ];
    proptest::collection::vec(op, 0..len)
}

fn run(uniqueness: Uniqueness, names: &[Vec<u8>], ops: &[Op]) {
    let mut list = NvList::with_flags(uniqueness);
    let mut model = Model { uniqueness, pairs: Vec::new() };
    for (step, op) in ops.iter().enumerate() {
        model.apply(op, &mut list);
        if step % 17 == 0 {
            model.compare(&list, names);
        }
    }
    model.compare(&list, names);
    let copy = list.clone();
    model.compare(&copy, names);
    for encoding in [Encoding::Xdr, Encoding::Native] {
        let packed = list.pack(encoding, Endian::NATIVE).unwrap();
        let back = NvList::unpack(&packed).unwrap();
        assert_eq!(back, list);
        model.compare(&back, names);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn few_names(mode in 0..3u32, ops in ops(12, 300)) {
        run(Uniqueness::from_flags(mode), &names(12), &ops);
    }

    #[test]
    fn many_names(mode in 0..3u32, ops in ops(150, 1500)) {
        run(Uniqueness::from_flags(mode), &names(150), &ops);
    }
}

/// Any value, including nested lists.
fn value() -> impl Strategy<Value = Value> {
    fn vec<T: std::fmt::Debug>(of: impl Strategy<Value = T>) -> impl Strategy<Value = Vec<T>> {
        proptest::collection::vec(of, 0..9)
    }
    fn text() -> impl Strategy<Value = NvString> {
        proptest::collection::vec(1..=255u8, 0..20).prop_map(NvString::from)
    }
    let numbers = prop_oneof![
        any::<u8>().prop_map(Value::Byte),
        any::<i8>().prop_map(Value::Int8),
        any::<u8>().prop_map(Value::Uint8),
        any::<i16>().prop_map(Value::Int16),
        any::<u16>().prop_map(Value::Uint16),
        any::<i32>().prop_map(Value::Int32),
        any::<u32>().prop_map(Value::Uint32),
        any::<i64>().prop_map(Value::Int64),
        any::<u64>().prop_map(Value::Uint64),
        any::<i64>().prop_map(Value::Hrtime),
        any::<f64>().prop_filter("comparable", |f| !f.is_nan()).prop_map(Value::Double),
        any::<bool>().prop_map(Value::BooleanValue),
        Just(Value::Boolean),
    ];
    let arrays = prop_oneof![
        text().prop_map(Value::String),
        vec(text()).prop_map(Value::StringArray),
        vec(any::<u8>()).prop_map(Value::ByteArray),
        vec(any::<bool>()).prop_map(Value::BooleanArray),
        vec(any::<i8>()).prop_map(Value::Int8Array),
        vec(any::<u8>()).prop_map(Value::Uint8Array),
        vec(any::<i16>()).prop_map(Value::Int16Array),
        vec(any::<u16>()).prop_map(Value::Uint16Array),
        vec(any::<i32>()).prop_map(Value::Int32Array),
        vec(any::<u32>()).prop_map(Value::Uint32Array),
        vec(any::<i64>()).prop_map(Value::Int64Array),
        vec(any::<u64>()).prop_map(Value::Uint64Array),
    ];
    prop_oneof![numbers, arrays].prop_recursive(3, 60, 9, |inner| {
        let pairs = proptest::collection::vec((proptest::collection::vec(1..=255u8, 0..9), inner), 0..9);
        let list = (0..3u32, pairs).prop_map(|(mode, pairs)| {
            let mut list = NvList::with_flags(Uniqueness::from_flags(mode));
            list.extend(pairs);
            list
        });
        prop_oneof![list.clone().prop_map(Value::from), proptest::collection::vec(list, 0..4).prop_map(Value::from),]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_list_survives_packing(values in proptest::collection::vec(value(), 0..30)) {
        let mut list = NvList::new();
        for (at, value) in values.into_iter().enumerate() {
            list.insert(format!("pair {at}"), value);
        }
        for (encoding, endian) in [(Encoding::Xdr, Endian::Little), (Encoding::Native, Endian::Little), (Encoding::Native, Endian::Big)] {
            let packed = list.pack(encoding, endian).unwrap();
            let (back, consumed) = NvList::unpack_with(&packed, &Limits::default()).unwrap();
            prop_assert_eq!(&back, &list);
            prop_assert_eq!(back.pack(encoding, endian).unwrap(), packed.clone());
            prop_assert!(packed[consumed..].iter().all(|b| *b == 0));
            let view = NvListRef::new(&packed).unwrap();
            prop_assert_eq!(view.check().unwrap(), consumed);
            for (name, value) in list.iter() {
                prop_assert_eq!(&view.get(name).unwrap().unwrap().to_value().unwrap(), value);
            }
            // every truncation is an error, not a shorter list
            for cut in (0..consumed).step_by(consumed / 50 + 1) {
                prop_assert!(NvList::unpack(&packed[..cut]).is_err());
            }
        }
    }
}
