//! `cargo bench -p zuse-benches --bench codec [-- rounds=5] [only=aes]`: our codecs beside the C libraries and OpenZFS's own code.
//!
//! MB/s on one thread, medians over the rounds, in which all take turns; a ratio above one means that ours is faster. Peers in this
//! process: C lz4, C zlib, ring (AES-GCM, SHA; assembly), the generic `ccm` crate, a plain scalar loop. "openzfs" is `zpeer prim`
//! (`peer/build-peer target/peer`), which measures on its own data of the same kind: log lines, random bytes.

use std::hint::black_box;
use std::time::{Duration, Instant};

use base::Endian;
use benches::{PeerResult, median, run_peer, zpeer};
use codec::crypt::{DatasetKey, Suite};
use codec::{ChecksumKind, Checksummer, Compress, compress, decompress, fletcher};

/// How long one measurement lasts.
const SLICE: Duration = Duration::from_millis(40);
const SIZES: [usize; 2] = [128 << 10, 8 << 10];

/// Something to be measured: it works once through a block.
type Work = Box<dyn FnMut()>;

struct Row {
    what: String,
    size: usize,
    ours: Work,
    theirs: Option<(&'static str, Work)>,
    /// Names of the peer's result and field that answer to this row, and the field's unit in MB/s.
    peer: Option<(&'static str, &'static str, f64)>,
    samples: [Vec<f64>; 3],
}

fn main() {
    let arg = |name: &str| std::env::args().find_map(|a| a.strip_prefix(name).map(str::to_owned));
    let rounds = arg("rounds=").and_then(|n| n.parse().ok()).unwrap_or(5);
    let only = arg("only=").unwrap_or_default();
    let mut rows = Vec::new();
    for size in SIZES {
        checksums(&mut rows, size);
        compressors(&mut rows, size);
        ciphers(&mut rows, size);
    }
    rows.retain(|r| r.what.contains(&only));
    let peer = zpeer();
    if peer.is_none() {
        println!("no peer: build it with `peer/build-peer target/peer`, or set ZPEER");
    }
    for _ in 0..rounds {
        for row in &mut rows {
            row.samples[0].push(rate(row.size, &mut row.ours));
            if let Some((_, theirs)) = &mut row.theirs {
                row.samples[1].push(rate(row.size, theirs));
            }
        }
        if let Some(peer) = &peer {
            let results = run_peer(peer, &["prim"]);
            for row in &mut rows {
                row.samples[2].extend(peer_rate(row, &results));
            }
        }
    }
    print(&rows, rounds);
}

/// MB/s of `work` on blocks of `size` bytes.
fn rate(size: usize, work: &mut Work) -> f64 {
    work();
    let start = Instant::now();
    let mut n = 0u32;
    loop {
        for _ in 0..4 {
            work();
        }
        n += 4;
        let elapsed = start.elapsed();
        if elapsed > SLICE {
            return f64::from(n) * size as f64 / elapsed.as_secs_f64() / 1e6;
        }
    }
}

/// The best of what the peer says to a row (it tries several implementations of some functions).
fn peer_rate(row: &Row, results: &[PeerResult]) -> Option<f64> {
    let (name, field, unit) = row.peer?;
    let size = row.size.to_string();
    let matching = results.iter().filter(|r| {
        r.get("name").is_some_and(|n| n == name || (name == "fletcher4" && n.starts_with("fletcher4_")))
            && r.get("size") == Some(&size)
    });
    matching.filter_map(|r| r.get(field)?.parse::<f64>().ok()).map(|v| v * unit).reduce(f64::max)
}

fn print(rows: &[Row], rounds: usize) {
    println!("MB/s, one thread, median of {rounds} rounds");
    println!(
        "{:>7}  {:<22}{:>9}{:>11} {:<12}{:>8}{:>10}{:>8}",
        "block", "", "zuse", "peer", "", "ratio", "openzfs", "ratio"
    );
    for row in rows {
        let [ours, theirs, openzfs] = row.samples.clone().map(median);
        let name = row.theirs.as_ref().map_or("", |t| t.0);
        let cell = |v: f64| if v.is_nan() { String::new() } else { format!("{v:.0}") };
        let ratio = |v: f64| if v.is_nan() { String::new() } else { format!("{:.2}x", ours / v) };
        println!(
            "{:>7}  {:<22}{:>9}{:>11} {:<12}{:>8}{:>10}{:>8}",
            row.size,
            row.what,
            cell(ours),
            cell(theirs),
            name,
            ratio(theirs),
            cell(openzfs),
            ratio(openzfs)
        );
    }
}

fn row(what: &str, size: usize, ours: impl FnMut() + 'static) -> Row {
    Row { what: what.to_owned(), size, ours: Box::new(ours), theirs: None, peer: None, samples: Default::default() }
}

impl Row {
    fn beside(mut self, name: &'static str, theirs: impl FnMut() + 'static) -> Row {
        self.theirs = Some((name, Box::new(theirs)));
        self
    }

    fn openzfs(mut self, name: &'static str, field: &'static str) -> Row {
        let unit = if field == "GBps" { 1e3 } else { 1.0 };
        self.peer = Some((name, field, unit));
        self
    }
}

fn random(size: usize) -> Vec<u8> {
    let mut x = 5u64;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x
    };
    (0..size / 8).flat_map(|_| next().to_le_bytes()).collect()
}

/// Log lines, as the peer makes them.
fn text(size: usize) -> Vec<u8> {
    let noise = random(size);
    let mut n = noise.chunks_exact(4).map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]]));
    let mut next = || n.next().unwrap_or(7);
    let mut out = Vec::new();
    while out.len() < size {
        let line = format!("{} user{} GET /index/{} HTTP/1.1 200 ", next() % 100_000, next() % 50, next() % 1000);
        out.extend(line.into_bytes());
    }
    out.truncate(size);
    out
}

fn plain_fletcher4(data: &[u8]) -> [u64; 4] {
    let [mut a, mut b, mut c, mut d] = [0u64; 4];
    for w in data.as_chunks::<4>().0 {
        a = a.wrapping_add(u64::from(u32::from_le_bytes(*w)));
        b = b.wrapping_add(a);
        c = c.wrapping_add(b);
        d = d.wrapping_add(c);
    }
    [a, b, c, d]
}

fn checksums(rows: &mut Vec<Row>, size: usize) {
    let data = random(size);
    let summer = Checksummer::new(Some([3; 32]));
    let sum = |kind: ChecksumKind, e: Endian| {
        let (summer, data) = (summer.clone(), data.clone());
        move || {
            let _ = black_box(summer.compute(kind, black_box(&data), e));
        }
    };
    let d = data.clone();
    let plain = move || {
        black_box(plain_fletcher4(black_box(&d)));
    };
    rows.push(
        row("fletcher4", size, sum(ChecksumKind::Fletcher4, Endian::NATIVE))
            .beside("scalar loop", plain)
            .openzfs("fletcher4", "GBps"),
    );
    rows.push(row("fletcher4 swapped", size, sum(ChecksumKind::Fletcher4, Endian::NATIVE.swapped())));
    let d = data.clone();
    rows.push(row("fletcher4 stream 312 B", size, move || {
        let mut f = fletcher::Fletcher4::new();
        for record in d.chunks(312) {
            f.update(record, Endian::NATIVE);
        }
        black_box(f.value());
    }));
    rows.push(row("fletcher2", size, sum(ChecksumKind::Fletcher2, Endian::NATIVE)));
    let ring_sha = |algorithm: &'static ring::digest::Algorithm| {
        let data = data.clone();
        move || {
            black_box(ring::digest::digest(algorithm, black_box(&data)));
        }
    };
    rows.push(
        row("sha256", size, sum(ChecksumKind::Sha256, Endian::NATIVE))
            .beside("ring", ring_sha(&ring::digest::SHA256))
            .openzfs("sha256", "GBps"),
    );
    rows.push(
        row("sha512/256", size, sum(ChecksumKind::Sha512, Endian::NATIVE))
            .beside("ring", ring_sha(&ring::digest::SHA512_256))
            .openzfs("sha512", "GBps"),
    );
    for (kind, name) in
        [(ChecksumKind::Skein, "skein"), (ChecksumKind::Edonr, "edonr"), (ChecksumKind::Blake3, "blake3")]
    {
        rows.push(row(name, size, sum(kind, Endian::NATIVE)).openzfs(name, "GBps"));
    }
}

fn compressors(rows: &mut Vec<Row>, size: usize) {
    let data = text(size);
    for (kind, name, compressing, expanding) in [
        (Compress::Lz4, "lz4_text", "lz4", "lz4 expand"),
        (Compress::Zstd, "zstd3_text", "zstd-3", "zstd-3 expand"),
        (Compress::Gzip6, "gzip6_text", "gzip-6", "gzip-6 expand"),
        (Compress::Lzjb, "lzjb_text", "lzjb", "lzjb expand"),
        (Compress::Zle, "", "zle", "zle expand"),
    ] {
        let Some(small) = compress(kind, None, &data, 2 * size) else { continue };
        let percent = 100 * small.len() / size;
        let d = data.clone();
        let ours = move || {
            black_box(compress(kind, None, black_box(&d), d.len() - d.len() / 8));
        };
        let mut to = row(&format!("{compressing} ({percent} %)"), size, ours).openzfs(name, "comp_MBps");
        let (s, mut dst) = (small.clone(), vec![0; size]);
        let ours = move || {
            let _ = black_box(decompress(kind, black_box(&s), &mut dst));
        };
        let mut from = row(expanding, size, ours).openzfs(name, "decomp_MBps");
        if kind == Compress::Lz4 {
            (to, from) = (to.beside("C lz4", c_lz4(&data)), from.beside("C lz4", c_lz4_expand(&small, size)));
        }
        if kind == Compress::Gzip6 {
            (to, from) = (to.beside("C zlib", c_zlib(&data)), from.beside("C zlib", c_zlib_expand(&small, size)));
        }
        rows.extend([to, from]);
    }
    let noise = random(size);
    rows.push(
        row("lz4 of noise", size, move || {
            black_box(compress(Compress::Lz4, None, black_box(&noise), noise.len() - noise.len() / 8));
        })
        .openzfs("lz4_random", "comp_MBps"),
    );
    let noise = random(size);
    rows.push(
        row("zstd-3 of noise", size, move || {
            black_box(compress(Compress::Zstd, None, black_box(&noise), noise.len() - noise.len() / 8));
        })
        .openzfs("zstd3_random", "comp_MBps"),
    );
}

fn c_lz4(data: &[u8]) -> impl FnMut() + 'static {
    let (data, mut out) = (data.to_vec(), vec![0; data.len() * 2]);
    move || {
        let _ = black_box(lz4::block::compress_to_buffer(black_box(&data), None, false, &mut out));
    }
}

fn c_lz4_expand(small: &[u8], size: usize) -> impl FnMut() + 'static {
    // Without our length; but the C library wants the expanded size.
    let (body, mut out) = (small[4..].to_vec(), vec![0; size]);
    move || {
        let _ = black_box(lz4::block::decompress_to_buffer(black_box(&body), i32::try_from(size).ok(), &mut out));
    }
}

fn c_zlib(data: &[u8]) -> impl FnMut() + 'static {
    let (data, mut out) = (data.to_vec(), vec![0u8; data.len() * 2]);
    move || {
        let mut len = out.len() as libz_sys::uLongf;
        // SAFETY: both pointers are of live vectors of the lengths given.
        let r = unsafe { libz_sys::compress2(out.as_mut_ptr(), &raw mut len, data.as_ptr(), data.len() as _, 6) };
        assert_eq!(black_box(r), 0);
    }
}

fn c_zlib_expand(small: &[u8], size: usize) -> impl FnMut() + 'static {
    let (small, mut out) = (small.to_vec(), vec![0u8; size]);
    move || {
        let mut len = out.len() as libz_sys::uLongf;
        // SAFETY: both pointers are of live vectors of the lengths given.
        let r = unsafe { libz_sys::uncompress(out.as_mut_ptr(), &raw mut len, small.as_ptr(), small.len() as _) };
        assert_eq!(black_box(r), 0);
    }
}

fn ciphers(rows: &mut Vec<Row>, size: usize) {
    let key = |suite| DatasetKey::new(suite, base::Guid(1), 1, &[7; 32], &[8; 64]);
    let encrypt = |suite| {
        let (key, mut data) = (key(suite), random(size));
        move || {
            let _ = black_box(key.as_ref().map(|k| k.encrypt_data(1, [2; 12], &mut data)));
        }
    };
    // Decrypting is in place: what comes out is noise to the next turn, with a MAC made for it beforehand being impossible, so
    // the cipher text is copied in first; the copy is part of both sides.
    let decrypt = |suite| {
        let (key, mut cipher) = (key(suite), random(size));
        let mac = key.as_ref().ok().and_then(|k| k.encrypt_data(1, [2; 12], &mut cipher).ok()).unwrap_or_default();
        let mut data = cipher.clone();
        move || {
            data.copy_from_slice(&cipher);
            let r = key.as_ref().map(|k| k.decrypt_data(1, [2; 12], mac, &mut data));
            assert!(matches!(black_box(r), Ok(Ok(()))));
        }
    };
    rows.push(row("aes-256-gcm", size, encrypt(Suite::Aes256Gcm)).beside("ring", ring_gcm(size, false)));
    rows.push(row("aes-256-gcm decrypt", size, decrypt(Suite::Aes256Gcm)).beside("ring", ring_gcm(size, true)));
    rows.push(row("aes-128-gcm decrypt", size, decrypt(Suite::Aes128Gcm)));
    rows.push(row("aes-256-ccm", size, encrypt(Suite::Aes256Ccm)).beside("ccm crate", generic_ccm(size)));
    rows.push(row("aes-256-ccm decrypt", size, decrypt(Suite::Aes256Ccm)));
    rows.push(row("aes-128-ccm decrypt", size, decrypt(Suite::Aes128Ccm)));
    let (hmac, data) = (key(Suite::Aes256Gcm), random(size));
    rows.push(row("hmac-sha512", size, move || {
        black_box(hmac.as_ref().map(|k| k.authenticate(black_box(&data)))).ok();
    }));
}

fn ring_gcm(size: usize, decrypt: bool) -> impl FnMut() + 'static {
    use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
    let key = UnboundKey::new(&AES_256_GCM, &[7; 32]).map(LessSafeKey::new);
    let nonce = || Nonce::assume_unique_for_key([2; 12]);
    let mut cipher = random(size);
    let tag = key.as_ref().map(|k| k.seal_in_place_separate_tag(nonce(), Aad::empty(), &mut cipher));
    let sealed: Vec<u8> = cipher.iter().chain(tag.iter().flatten().flat_map(|t| t.as_ref())).copied().collect();
    let mut data = sealed.clone();
    move || {
        let Ok(key) = &key else { return };
        if decrypt {
            data.copy_from_slice(&sealed);
            assert!(black_box(key.open_in_place(nonce(), Aad::empty(), &mut data)).is_ok());
        } else {
            let _ = black_box(key.seal_in_place_separate_tag(nonce(), Aad::empty(), &mut data[..size]));
        }
    }
}

fn generic_ccm(size: usize) -> impl FnMut() + 'static {
    use ccm::aead::AeadInOut;
    use ccm::consts::{U12, U16};
    let cipher = <ccm::Ccm<aes::Aes256, U16, U12> as ccm::KeyInit>::new(&[7; 32].into());
    let mut data = random(size);
    move || {
        let _ = black_box(cipher.encrypt_inout_detached(&[2; 12].into(), &[], data.as_mut_slice().into()));
    }
}
