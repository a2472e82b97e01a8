//! LZJB: Lempel–Ziv with a window of 1 KiB.
//!
//! A map byte says for each of the next eight items, lowest bit first, whether it is a literal byte (0) or a match (1). A match is two
//! bytes, high first: six bits of length − 3, ten bits of distance back. There is no end marker: the expanded size is known.

const MATCH_MIN: usize = 3;
const MATCH_MAX: usize = 66;
const DISTANCE_MASK: usize = 0x3ff;

pub(super) fn decompress(src: &[u8], dst: &mut [u8]) -> Result<(), &'static str> {
    const SHORT: &str = "input ends too early";
    let mut src = src.iter().copied();
    let mut next = || src.next().ok_or(SHORT);
    let mut at = 0;
    while at < dst.len() {
        let map = next()?;
        for bit in 0..8 {
            if at >= dst.len() {
                break;
            }
            if map >> bit & 1 == 0 {
                if let Some(d) = dst.get_mut(at) {
                    *d = next()?;
                }
                at += 1;
                continue;
            }
            let (high, low) = (usize::from(next()?), usize::from(next()?));
            let length = ((high >> 2) + MATCH_MIN).min(dst.len() - at);
            let distance = (high << 8 | low) & DISTANCE_MASK;
            if distance == 0 {
                return Err("match at distance zero");
            }
            let from = at.checked_sub(distance).ok_or("match before the start")?;
            copy_match(dst, from, at, length);
            at += length;
        }
    }
    Ok(())
}

/// Copies `length` bytes from `from` to `at`, which may overlap: a match can repeat what it writes.
fn copy_match(dst: &mut [u8], from: usize, at: usize, length: usize) {
    if at - from >= length {
        dst.copy_within(from..from + length, at);
        return;
    }
    for i in 0..length {
        if let Some(b) = dst.get(from + i).copied()
            && let Some(d) = dst.get_mut(at + i)
        {
            *d = b;
        }
    }
}

pub(super) fn compress(src: &[u8], limit: usize) -> Option<Vec<u8>> {
    const HASHES: usize = 1024;
    // The last position + 1 at which the three bytes of each hash were seen.
    let mut seen = [0u32; HASHES];
    let mut out = Vec::with_capacity(limit);
    let mut at = 0;
    while at < src.len() {
        // A group is at most a map byte and eight matches.
        if out.len() + 1 + 2 * 8 > limit {
            return None;
        }
        let map_at = out.len();
        out.push(0);
        let mut map = 0u8;
        for bit in 0..8 {
            let Some((&first, rest)) = src.get(at..).and_then(|s| s.split_first()) else { break };
            let found = if rest.len() + 1 < MATCH_MAX { None } else { find_match(src, at, &mut seen) };
            if let Some((distance, length)) = found {
                map |= 1 << bit;
                let code = (length - MATCH_MIN) << 10 | distance;
                out.extend((code as u16).to_be_bytes());
                at += length;
            } else {
                out.push(first);
                at += 1;
            }
        }
        if let Some(m) = out.get_mut(map_at) {
            *m = map;
        }
    }
    out.shrink_to_fit();
    Some(out)
}

/// The match at `at` that the hash table knows, as (distance, length); records `at`.
fn find_match(src: &[u8], at: usize, seen: &mut [u32; 1024]) -> Option<(usize, usize)> {
    let here = src.get(at..)?.get(..MATCH_MAX)?;
    let [a, b, c] = *here.first_chunk::<3>()?;
    let mut hash = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
    hash += hash >> 9;
    hash += hash >> 5;
    let slot = seen.get_mut(hash % 1024)?;
    let last = std::mem::replace(slot, u32::try_from(at + 1).ok()?);
    let from = usize::try_from(last).ok()?.checked_sub(1)?;
    let distance = at - from;
    if distance > DISTANCE_MASK {
        return None;
    }
    let length = here.iter().zip(src.get(from..)?).take_while(|(x, y)| x == y).count();
    (length >= MATCH_MIN).then_some((distance, length))
}
