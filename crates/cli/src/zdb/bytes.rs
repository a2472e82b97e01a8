//! Bytes on the screen: hexadecimal, raw, as block pointers; and `-E`, the payload of an embedded block.

use std::io::{self, Write};

use base::Endian;
use ondisk::{BLKPTR_SIZE, BlkPtr};
use zuse::codec::{Compress, decompress};
use zuse::zil::ShowBlkPtr;

use crate::error::{Failure, Outcome, failed};
use crate::pools::stdout;

/// Prints 16 bytes per line: offset, two words, characters. `swap` reverses the bytes of each word.
pub(super) fn hex(out: &mut dyn Write, title: &str, bytes: &[u8], swap: bool) -> io::Result<()> {
    let head = if swap { " 7 6 5 4 3 2 1 0   f e d c b a 9 8" } else { " 0 1 2 3 4 5 6 7   8 9 a b c d e f" };
    writeln!(out, "\n{title}\n{:6}   {head}  0123456789abcdef", "")?;
    for (n, line) in bytes.chunks(16).enumerate() {
        write!(out, "{:06x}:  ", n * 16)?;
        for half in 0..2 {
            let word = base::bytes::u64(line, half * 8, Endian::Big).unwrap_or(0);
            write!(out, "{:016x}  ", if swap { word.swap_bytes() } else { word })?;
        }
        let shown = |b: &u8| if (b' '..=b'~').contains(b) { char::from(*b) } else { '.' };
        writeln!(out, "{}", line.iter().map(shown).collect::<String>())?;
    }
    Ok(())
}

/// Prints the bytes as they are; `swap` reverses each word.
pub(super) fn raw(out: &mut dyn Write, bytes: &[u8], swap: bool) -> io::Result<()> {
    if !swap {
        return out.write_all(bytes);
    }
    let words = bytes.chunks(8);
    words.into_iter().try_for_each(|word| out.write_all(&word.iter().rev().copied().collect::<Vec<u8>>()))
}

/// Prints block pointers, one per line, at most `count`.
pub(super) fn pointers(out: &mut dyn Write, bytes: &[u8], count: usize, swap: bool) -> io::Result<()> {
    let order = match (Endian::NATIVE, swap) {
        (order, false) => order,
        (Endian::Little, true) => Endian::Big,
        (Endian::Big, true) => Endian::Little,
    };
    for raw in bytes.as_chunks::<BLKPTR_SIZE>().0.iter().take(count) {
        writeln!(out, "{}", ShowBlkPtr(&BlkPtr::from_bytes(raw, order)))?;
    }
    Ok(())
}

/// `-E`: decodes an embedded block pointer, given as its sixteen words, and writes its payload.
pub(super) fn embedded(text: &str) -> Outcome {
    let words: Option<Vec<u64>> =
        text.split(':').map(|w| u64::from_str_radix(w.trim_start_matches("0x"), 16).ok()).collect();
    let words: Option<[u64; 16]> = words.and_then(|words| words.try_into().ok());
    let bp = BlkPtr { words: words.ok_or_else(|| failed("invalid input format"))? };
    let mut out = stdout();
    out.write_all(&payload(&bp)?)?;
    out.flush()?;
    Ok(0)
}

fn payload(bp: &BlkPtr) -> Result<Vec<u8>, Failure> {
    let bad = |errno: i32| failed(format!("decode failed: {errno}"));
    let all = bp.embedded_payload();
    let stored = all.get(..bp.psize() as usize).filter(|_| bp.is_embedded()).ok_or_else(|| bad(22))?;
    let lsize = bp.lsize();
    if lsize > ondisk::SPA_MAXBLOCKSIZE {
        return Err(bad(22));
    }
    let mut plain = vec![0; lsize as usize];
    match Compress::from_u8(bp.compression()) {
        Some(Compress::Off) | None => {
            plain.iter_mut().zip(stored).for_each(|(to, from)| *to = *from);
        }
        Some(kind) => decompress(kind, stored, &mut plain).map_err(|_| bad(5))?,
    }
    Ok(plain)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_line_shows_two_words_and_characters() {
        let mut out = Vec::new();
        hex(&mut out, "t", b"0123456789abcde\n", false).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.ends_with("\n000000:  3031323334353637  383961626364650a  0123456789abcde.\n"), "{text}");
        let mut out = Vec::new();
        hex(&mut out, "t", b"0123456789abcde\n", true).unwrap();
        assert!(String::from_utf8(out).unwrap().contains("3736353433323130  0a65646362613938"));
    }

    #[test]
    fn an_embedded_block_without_compression_is_its_payload() {
        let mut bp = BlkPtr::HOLE;
        bp.words[0] = u64::from_le_bytes(*b"embedded");
        // an embedded pointer, not compressed, 8 bytes of payload and of data
        bp.words[6] = 1 << 39 | 2 << 32 | 7 << 25 | 7;
        assert_eq!(payload(&bp).unwrap(), b"embedded");
    }
}
