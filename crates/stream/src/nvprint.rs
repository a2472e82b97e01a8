//! An nvlist in the format of OpenZFS's `nvlist_print()`: that of `zstream dump`, and of a token in `zfs send -nvt`. (`zdb` and
//! `zstream token` use another: [`nvlist::NvList::dump`].)

use std::fmt::Display;
use std::io::{self, Write};

use nvlist::{NvList, Value};

/// Writes `list` as OpenZFS's `nvlist_print()` does, indented by one tab per level. Its depth is bounded by the decoder.
///
/// # Errors
/// Those of `out`.
pub fn print(out: &mut impl Write, list: &NvList) -> io::Result<()> {
    level(out, list, 0)
}

fn indent(out: &mut impl Write, depth: usize) -> io::Result<()> {
    (0..depth).try_for_each(|_| out.write_all(b"\t"))
}

fn level(out: &mut impl Write, list: &NvList, depth: usize) -> io::Result<()> {
    indent(out, depth)?;
    writeln!(out, "nvlist version: 0")?;
    for (name, value) in list.iter_bytes() {
        pair(out, name, value, depth)?;
        writeln!(out)?;
    }
    Ok(())
}

fn head(out: &mut impl Write, name: &[u8], depth: usize) -> io::Result<()> {
    indent(out, depth + 1)?;
    out.write_all(name)?;
    out.write_all(b" = ")
}

fn one(out: &mut impl Write, name: &[u8], depth: usize, value: impl Display) -> io::Result<()> {
    head(out, name, depth)?;
    write!(out, "{value}")
}

fn text(out: &mut impl Write, name: &[u8], depth: usize, value: &[u8]) -> io::Result<()> {
    head(out, name, depth)?;
    out.write_all(value)
}

/// Writes the elements separated by spaces; for an empty array not even the name.
fn many<T, D: Display>(
    out: &mut impl Write,
    name: &[u8],
    depth: usize,
    values: &[T],
    show: impl Fn(&T) -> D,
) -> io::Result<()> {
    for (n, value) in values.iter().enumerate() {
        match n {
            0 => head(out, name, depth)?,
            _ => out.write_all(b" ")?,
        }
        write!(out, "{}", show(value))?;
    }
    Ok(())
}

fn bracket(out: &mut impl Write, depth: usize, word: &str, name: &[u8], index: Option<usize>) -> io::Result<()> {
    indent(out, depth + 1)?;
    write!(out, "({word} ")?;
    out.write_all(name)?;
    match index {
        Some(n) => writeln!(out, "[{n}])"),
        None => writeln!(out, ")"),
    }
}

fn pair(out: &mut impl Write, name: &[u8], value: &Value, depth: usize) -> io::Result<()> {
    match value {
        Value::Boolean => one(out, name, depth, 1),
        Value::BooleanValue(v) => one(out, name, depth, u8::from(*v)),
        Value::Byte(v) => one(out, name, depth, format_args!("{v:#04x}")),
        Value::Int8(v) => one(out, name, depth, v),
        Value::Int16(v) => one(out, name, depth, v),
        Value::Int32(v) => one(out, name, depth, v),
        Value::Int64(v) => one(out, name, depth, v),
        Value::Uint8(v) => one(out, name, depth, format_args!("{v:#x}")),
        Value::Uint16(v) => one(out, name, depth, format_args!("{v:#x}")),
        Value::Uint32(v) => one(out, name, depth, format_args!("{v:#x}")),
        Value::Uint64(v) => one(out, name, depth, format_args!("{v:#x}")),
        Value::Hrtime(v) => one(out, name, depth, format_args!("{v:#x}")),
        Value::Double(v) => one(out, name, depth, format_args!("0x{v:.6}")),
        Value::String(v) => text(out, name, depth, v.as_bytes()),
        Value::BooleanArray(v) => many(out, name, depth, v, |v| u8::from(*v)),
        Value::ByteArray(v) => many(out, name, depth, v, |v| format!("{v:#04x}")),
        Value::Int8Array(v) => many(out, name, depth, v, |v| *v),
        Value::Int16Array(v) => many(out, name, depth, v, |v| *v),
        Value::Int32Array(v) => many(out, name, depth, v, |v| *v),
        Value::Int64Array(v) => many(out, name, depth, v, |v| *v),
        Value::Uint8Array(v) => many(out, name, depth, v, |v| format!("{v:#x}")),
        Value::Uint16Array(v) => many(out, name, depth, v, |v| format!("{v:#x}")),
        Value::Uint32Array(v) => many(out, name, depth, v, |v| format!("{v:#x}")),
        Value::Uint64Array(v) => many(out, name, depth, v, |v| format!("{v:#x}")),
        Value::StringArray(v) => strings(out, name, depth, v),
        Value::NvList(list) => {
            indent(out, depth + 1)?;
            out.write_all(name)?;
            writeln!(out, " = (embedded nvlist)")?;
            level(out, list, depth + 1)?;
            bracket(out, depth, "end", name, None)
        }
        Value::NvListArray(lists) => {
            indent(out, depth + 1)?;
            out.write_all(name)?;
            writeln!(out, " = (array of embedded nvlists)")?;
            for (n, list) in lists.iter().enumerate() {
                bracket(out, depth, "start", name, Some(n))?;
                level(out, list, depth + 1)?;
                bracket(out, depth, "end", name, Some(n))?;
            }
            Ok(())
        }
    }
}

fn strings(out: &mut impl Write, name: &[u8], depth: usize, values: &[nvlist::NvString]) -> io::Result<()> {
    for (n, value) in values.iter().enumerate() {
        match n {
            0 => head(out, name, depth)?,
            _ => out.write_all(b" ")?,
        }
        out.write_all(value.as_bytes())?;
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_value_has_its_form() {
        let mut inner = NvList::new();
        inner.insert("b", true);
        let mut list = NvList::new();
        list.insert("flag", Value::Boolean);
        list.insert("word", 255_u64);
        list.insert("bytes", Value::ByteArray(vec![1, 0xab]));
        list.insert("none", Vec::<u64>::new());
        list.insert("inner", inner.clone());
        list.insert("lists", vec![inner]);
        let mut out = Vec::new();
        print(&mut out, &list).unwrap();
        let want = "nvlist version: 0\n\tflag = 1\n\tword = 0xff\n\tbytes = 0x01 0xab\n\n\tinner = (embedded nvlist)\n\
                    \tnvlist version: 0\n\t\tb = 1\n\t(end inner)\n\n\tlists = (array of embedded nvlists)\n\
                    \t(start lists[0])\n\tnvlist version: 0\n\t\tb = 1\n\t(end lists[0])\n\n";
        assert_eq!(String::from_utf8(out).unwrap(), want);
    }
}
