//! Printing a list the way `zdb` does.

use std::borrow::Cow;
use std::fmt::Display;

use crate::{NvList, NvString, Value};

impl NvList {
    /// The list as text, one line per pair, as OpenZFS's `dump_nvlist()` prints it; `zdb -l` and `zdb -C` print configurations this way.
    #[must_use]
    pub fn dump(&self, indent: usize) -> String {
        let mut text = String::new();
        dump(&mut text, self, indent, as_it_is);
        text
    }

    /// As [`NvList::dump`], with control characters in names and strings escaped: they would forge other lines, or act on a terminal.
    #[must_use]
    pub fn dump_escaped(&self, indent: usize) -> String {
        let mut text = String::new();
        dump(&mut text, self, indent, in_line);
        text
    }
}

/// How a name or a string is shown.
type Shown = for<'a> fn(Cow<'a, str>) -> Cow<'a, str>;

fn as_it_is(text: Cow<'_, str>) -> Cow<'_, str> {
    text
}

fn dump(out: &mut String, list: &NvList, indent: usize, shown: Shown) {
    for (name, value) in list.iter_bytes() {
        let name = shown(String::from_utf8_lossy(name));
        let mut one = |value: &dyn Display| *out += &format!("{:indent$}{name}: {value}\n", "");
        match value {
            Value::Boolean => *out += &format!("{:indent$}{name}\n", ""),
            Value::BooleanValue(v) => one(v),
            Value::Byte(v) | Value::Uint8(v) => one(v),
            Value::Int8(v) => one(v),
            Value::Int16(v) => one(v),
            Value::Uint16(v) => one(v),
            Value::Int32(v) => one(v),
            Value::Uint32(v) => one(v),
            Value::Int64(v) => one(v),
            Value::Uint64(v) => one(v),
            Value::String(text) => one(&format_args!("'{}'", shown(text.to_string().into()))),
            Value::ByteArray(v) | Value::Uint8Array(v) => each(out, indent, &name, v),
            Value::Int8Array(v) => each(out, indent, &name, v),
            Value::Int16Array(v) => each(out, indent, &name, v),
            Value::Uint16Array(v) => each(out, indent, &name, v),
            Value::Int32Array(v) => each(out, indent, &name, v),
            Value::Uint32Array(v) => each(out, indent, &name, v),
            Value::Int64Array(v) => each(out, indent, &name, v),
            Value::Uint64Array(v) => each(out, indent, &name, v),
            Value::StringArray(v) => {
                let quoted: Vec<String> =
                    v.iter().map(|text: &NvString| format!("'{}'", shown(text.to_string().into()))).collect();
                each(out, indent, &name, &quoted);
            }
            Value::NvList(list) => {
                *out += &format!("{:indent$}{name}:\n", "");
                dump(out, list, indent + 4, shown);
            }
            Value::NvListArray(lists) => {
                for (at, list) in lists.iter().enumerate() {
                    *out += &format!("{:indent$}{name}[{at}]:\n", "");
                    dump(out, list, indent + 4, shown);
                }
            }
            // OpenZFS's words: `dump_nvlist()` does not know these types
            Value::Hrtime(_) | Value::Double(_) | Value::BooleanArray(_) => {
                *out += &format!("bad config type {} for {name}\n", value.data_type() as u8);
            }
        }
    }
}

/// Text without control characters.
fn in_line(text: Cow<'_, str>) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return text;
    }
    let escape = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(escape).collect::<String>().into()
}

fn each(out: &mut String, indent: usize, name: &str, values: &[impl Display]) {
    for (at, value) in values.iter().enumerate() {
        *out += &format!("{:indent$}{name}[{at}]: {value}\n", "");
    }
}
