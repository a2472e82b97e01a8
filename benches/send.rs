//! `cargo bench -p zuse-benches --bench send [-- blocks=1000000 files=100000 rounds=5 only=0]`: `send -c -e -L` of cold pools, beside OpenZFS's own
//! engine, in turn (`only` the nth of them): a file of blocks of 8 KiB that compress to 2.5 KiB, to /dev/null and to a pipe, a tenth of it changed in clumps and
//! scattered, and many small files.
//!
//! Prints blocks per CPU second and per second of wall time, the peak of the process's memory, and what the ARC held before and after; medians. The
//! pools are kept in `$ZUSE_BENCH_DIR` (`target/bench`) for the next time.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use benches::streams::{PERCENT, SENT, Sent, Source, cost, figure, kept};
use benches::{median, number, run_peer, zpeer};

/// The destination of a stream.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Out {
    Null,
    Pipe,
}

/// Blocks per CPU second, per second, peak MB, MB of the ARC before and after.
type Figures = [f64; 5];

fn main() {
    let (blocks, files, rounds) = (number("blocks", 50_000), number("files", 5000), number("rounds", 3));
    let Some(peer) = zpeer() else {
        println!("send: skipped; it needs the peer, that makes its pools (peer/build-peer target/peer)");
        return;
    };
    let Some(source) = Source::new(&peer, &kept(), blocks, files) else { return };
    println!("median of {rounds} rounds in turn; thousand blocks a second, MB");
    println!(
        "{:<28}{:>9}  {:<9}{:>10}{:>9}{:>10}{:>12}{:>11}",
        "", "blocks", "", "CPU s", "wall s", "peak MB", "ARC before", "ARC after"
    );
    let full = SENT.first().map(|sent| (sent, Out::Pipe));
    let only = usize::try_from(number("only", u64::MAX)).unwrap_or(usize::MAX);
    for (nth, (sent, out)) in SENT.iter().map(|sent| (sent, Out::Null)).chain(full).enumerate() {
        if only != usize::MAX && only != nth {
            continue;
        }
        let (mut of_zuse, mut of_peer) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            of_zuse.push(ours(&source, sent, out));
            of_peer.extend(theirs(&peer, &source, sent, out));
        }
        print(&source, sent, out, "zuse", &of_zuse);
        print(&source, sent, out, "libzpool", &of_peer);
    }
}

fn print(source: &Source, sent: &Sent, out: Out, who: &str, rounds: &[Figures]) {
    let of = |n: usize| median(rounds.iter().filter_map(|figures| figures.get(n).copied()).collect());
    let name = format!("{} to {}", sent.name, if out == Out::Null { "/dev/null" } else { "a pipe" });
    println!(
        "{name:<28}{:>9}  {who:<9}{:>10.1}{:>9.1}{:>10.0}{:>12.1}{:>11.1}",
        source.blocks_of(sent),
        of(0) / 1e3,
        of(1) / 1e3,
        of(2),
        of(3),
        of(4)
    );
}

/// A process that throws away all that comes.
#[allow(clippy::expect_used)]
fn drain() -> (std::process::Child, File) {
    let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("cat");
    let input = child.stdin.take().expect("its input");
    (child, File::from(std::os::fd::OwnedFd::from(input)))
}

#[allow(clippy::expect_used)]
fn ours(source: &Source, sent: &Sent, out: Out) -> Figures {
    let pool = source.open(sent.pool);
    let held = || pool.zio().arc().stats().size as f64 / 1e6;
    let before = held();
    let (reader, mut out) = match out {
        Out::Null => (None, File::options().write(true).open("/dev/null").expect("/dev/null")),
        Out::Pipe => {
            let (reader, out) = drain();
            (Some(reader), out)
        }
    };
    let cost = cost(|| source.send(&pool, sent, &mut out));
    drop(out);
    drop(reader.map(|mut reader| reader.wait()));
    let blocks = source.blocks_of(sent) as f64;
    [blocks / cost.cpu, blocks / cost.wall, cost.peak_mb, before, held()]
}

fn theirs(peer: &PathBuf, source: &Source, sent: &Sent, out: Out) -> Option<Figures> {
    let mut args = vec![
        "send".to_string(),
        format!("dir={}", source.dir.display()),
        format!("pool={}", sent.pool),
        format!("blocks={}", if sent.pool == "pf" { source.files } else { source.blocks }),
        format!("pct={PERCENT}"),
        format!("to={}", sent.to),
        format!("out={}", if out == Out::Null { "null" } else { "pipe" }),
    ];
    args.extend(sent.from.map(|from| format!("from={from}")));
    let results = match out {
        Out::Null => run_peer(peer, &args.iter().map(String::as_str).collect::<Vec<_>>()),
        // the peer writes a pipe's stream to descriptor 3
        Out::Pipe => {
            let script = r#"{ "$0" "$@" 3>&1 1>&4 | cat >/dev/null; } 4>&1"#;
            let mut words = vec!["-c".to_string(), script.to_string(), peer.display().to_string()];
            words.extend(args);
            run_peer(&PathBuf::from("/bin/sh"), &words.iter().map(String::as_str).collect::<Vec<_>>())
        }
    };
    let result = results.into_iter().next_back()?;
    Some(["per_cpu", "rate", "rss_MB", "arc_before", "arc_after"].map(|key| figure(&result, key)))
}
