//! ZLE: runs of zeros.
//!
//! A length byte n below 64 is followed by n + 1 literal bytes; one of 64 or more stands for n − 63 zeros.

/// Length bytes from this value on stand for zeros. OpenZFS: `ci_level` of zle.
const LEVEL: usize = 64;

pub(super) fn decompress(src: &[u8], dst: &mut [u8]) -> Result<(), &'static str> {
    const SHORT: &str = "input ends too early";
    const LONG: &str = "a run goes beyond the block";
    let mut src = src;
    let mut dst = dst;
    while !dst.is_empty() {
        let (&n, rest) = src.split_first().ok_or(SHORT)?;
        let n = usize::from(n) + 1;
        if n <= LEVEL {
            let (run, rest) = rest.split_at_checked(n).ok_or(SHORT)?;
            let (to, more) = dst.split_at_mut_checked(n).ok_or(LONG)?;
            to.copy_from_slice(run);
            (src, dst) = (rest, more);
        } else {
            let (to, more) = dst.split_at_mut_checked(n - LEVEL).ok_or(LONG)?;
            to.fill(0);
            (src, dst) = (rest, more);
        }
    }
    Ok(())
}

pub(super) fn compress(src: &[u8], limit: usize) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(limit);
    let mut src = src;
    while !src.is_empty() {
        let zeros = src.iter().take(256 - LEVEL).take_while(|b| **b == 0).count();
        let taken = if zeros > 0 {
            out.push((zeros - 1 + LEVEL) as u8);
            zeros
        } else {
            // Literals, up to a pair of zeros.
            let pair = src.windows(2).take(LEVEL).position(|w| w == [0, 0]);
            let n = pair.unwrap_or(src.len().min(LEVEL));
            out.push((n - 1) as u8);
            out.extend(src.get(..n)?);
            n
        };
        if out.len() > limit {
            return None;
        }
        src = src.get(taken..)?;
    }
    out.shrink_to_fit();
    Some(out)
}
