//! Printing a list as JSON.

use std::fmt::{self, Write};

use crate::{NvList, Value};

/// The style of the JSON output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JsonStyle {
    /// Byte for byte the output of OpenZFS's `nvlist_print_json()`: one line, ASCII, everything else as `\uXXXX`; characters beyond the
    /// basic plane are left out, as OpenZFS does. (OpenZFS stops at bytes that are not UTF-8; here they become U+FFFD.)
    OpenZfs,
    /// One line of UTF-8, nothing left out; numbers that JSON cannot express are `null`.
    Plain,
}

impl NvList {
    /// The list as OpenZFS's `nvlist_print_json()` prints it.
    #[must_use]
    pub fn to_json(&self) -> String {
        self.to_json_style(JsonStyle::OpenZfs)
    }

    /// The list as JSON in the given style.
    #[must_use]
    pub fn to_json_style(&self, style: JsonStyle) -> String {
        let mut json = String::new();
        // writing to a String does not fail
        let _ = self.write_json(&mut json, style);
        json
    }

    /// Writes the list as JSON.
    ///
    /// # Errors
    /// Errors of `out`.
    pub fn write_json(&self, out: &mut impl Write, style: JsonStyle) -> fmt::Result {
        write_list(out, style, self)
    }
}

fn write_list<W: Write>(out: &mut W, style: JsonStyle, list: &NvList) -> fmt::Result {
    out.write_char('{')?;
    for (at, (name, value)) in list.iter_bytes().enumerate() {
        if at > 0 {
            out.write_char(',')?;
        }
        write_string(out, style, name)?;
        out.write_char(':')?;
        write_value(out, style, value)?;
    }
    out.write_char('}')
}

fn write_array<W: Write, T>(out: &mut W, items: &[T], mut each: impl FnMut(&mut W, &T) -> fmt::Result) -> fmt::Result {
    out.write_char('[')?;
    for (at, item) in items.iter().enumerate() {
        if at > 0 {
            out.write_char(',')?;
        }
        each(out, item)?;
    }
    out.write_char(']')
}

fn write_value<W: Write>(out: &mut W, style: JsonStyle, value: &Value) -> fmt::Result {
    match value {
        Value::Boolean => out.write_str("true"),
        Value::BooleanValue(v) => write!(out, "{v}"),
        Value::Byte(v) | Value::Uint8(v) => write!(out, "{v}"),
        Value::Int8(v) => write!(out, "{v}"),
        Value::Int16(v) => write!(out, "{v}"),
        Value::Uint16(v) => write!(out, "{v}"),
        Value::Int32(v) => write!(out, "{v}"),
        Value::Uint32(v) => write!(out, "{v}"),
        Value::Int64(v) => write!(out, "{v}"),
        Value::Uint64(v) => write!(out, "{v}"),
        // OpenZFS prints it unsigned
        Value::Hrtime(v) if style == JsonStyle::OpenZfs => write!(out, "{}", *v as u64),
        Value::Hrtime(v) => write!(out, "{v}"),
        Value::Double(v) => write_double(out, style, *v),
        Value::String(text) => write_string(out, style, text),
        Value::NvList(list) => write_list(out, style, list),
        Value::ByteArray(v) | Value::Uint8Array(v) => write_array(out, v, |o, n| write!(o, "{n}")),
        Value::BooleanArray(v) => write_array(out, v, |o, n| write!(o, "{n}")),
        Value::Int8Array(v) => write_array(out, v, |o, n| write!(o, "{n}")),
        Value::Int16Array(v) => write_array(out, v, |o, n| write!(o, "{n}")),
        Value::Uint16Array(v) => write_array(out, v, |o, n| write!(o, "{n}")),
        Value::Int32Array(v) => write_array(out, v, |o, n| write!(o, "{n}")),
        Value::Uint32Array(v) => write_array(out, v, |o, n| write!(o, "{n}")),
        Value::Int64Array(v) => write_array(out, v, |o, n| write!(o, "{n}")),
        Value::Uint64Array(v) => write_array(out, v, |o, n| write!(o, "{n}")),
        Value::StringArray(v) => write_array(out, v, |o, text| write_string(o, style, text)),
        Value::NvListArray(v) => write_array(out, v, |o, list| write_list(o, style, list)),
    }
}

fn write_double<W: Write>(out: &mut W, style: JsonStyle, v: f64) -> fmt::Result {
    if v.is_finite() {
        return match style {
            JsonStyle::OpenZfs => write!(out, "{v:.6}"),
            JsonStyle::Plain => write!(out, "{v:?}"),
        };
    }
    match style {
        JsonStyle::Plain => out.write_str("null"),
        // as C's printf prints it, which is not JSON
        JsonStyle::OpenZfs => {
            let sign = if v.is_sign_negative() { "-" } else { "" };
            write!(out, "{sign}{}", if v.is_nan() { "nan" } else { "inf" })
        }
    }
}

fn write_string<W: Write>(out: &mut W, style: JsonStyle, bytes: &[u8]) -> fmt::Result {
    out.write_char('"')?;
    for chunk in bytes.utf8_chunks() {
        let broken = (!chunk.invalid().is_empty()).then_some(char::REPLACEMENT_CHARACTER);
        for c in chunk.valid().chars().chain(broken) {
            match c {
                '"' => out.write_str("\\\"")?,
                '\\' => out.write_str("\\\\")?,
                '\n' => out.write_str("\\n")?,
                '\r' => out.write_str("\\r")?,
                '\t' => out.write_str("\\t")?,
                '\x0c' => out.write_str("\\f")?,
                '\x08' => out.write_str("\\b")?,
                '\0'..'\x20' => write!(out, "\\u{:04x}", c as u32)?,
                ' '..='\x7f' => out.write_char(c)?,
                _ if style == JsonStyle::Plain => out.write_char(c)?,
                '\u{80}'..='\u{ffff}' => write!(out, "\\u{:04x}", c as u32)?,
                _ => {}
            }
        }
    }
    out.write_char('"')
}
