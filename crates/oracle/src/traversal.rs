//! zdb's walk over all blocks, without the wait behind it.
//!
//! After `zdb -b` has said everything, it throws its cache away, and spins until the last prefetched block is six seconds old: on all
//! cores, several times what the walk takes. With `-G` it prints a log between the two, so that one can tell. If by then all is well beyond
//! doubt, it is ended there; if not, it is waited for, and its status is its own.

use std::io::{self, BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Output};

use crate::watchdog::{self, Watched};

/// Where the log begins and ends on standard error.
const LOG: &[u8] = b"ZFS_DBGMSG(zdb) START:";
const LOG_END: &[u8] = b"ZFS_DBGMSG(zdb) END";

/// Whether these arguments of zdb make it walk all blocks.
pub(crate) fn is_asked_for(args: &[&str]) -> bool {
    let walks = |arg: &&&str| {
        let letters = arg.strip_prefix('-').filter(|letters| !letters.starts_with(['-', 'o', 'p', 'K', 'U', 't', 'G']));
        letters.is_some_and(|letters| letters.contains(['b', 'c']))
    };
    args.iter().any(|arg| walks(&arg))
}

/// Runs zdb with arguments that make it walk; its messages are without the log.
pub(crate) fn run(zdb: &Command, args: &[&str]) -> io::Result<Output> {
    // a line is there when it is printed
    let mut command = Command::new("stdbuf");
    command.arg("-oL").arg(zdb.get_program()).arg("-G").args(args);
    let mut tool = Watched::start(command, watchdog::PATIENCE)?;
    let (out, err) = tool.pipes()?;
    let text = watchdog::collect(out);
    let (mut messages, mut log) = (Vec::new(), false);
    let mut lines = BufReader::new(err);
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line)? > 0 {
        log |= line.starts_with(LOG);
        if line.starts_with(LOG_END) {
            break;
        }
        if !log {
            messages.extend_from_slice(&line);
        }
        line.clear();
    }
    let ended_early = log && is_progress(&messages);
    if ended_early {
        tool.kill()?;
    }
    let rest = watchdog::collect(lines);
    let stdout = watchdog::collected(text)?;
    messages.extend(watchdog::collected(rest)?);
    let status = tool.wait()?;
    if !ended_early {
        return Ok(Output { status, stdout, stderr: messages });
    }
    if is_well(&stdout) {
        return Ok(Output { status: ExitStatus::from_raw(0), stdout, stderr: messages });
    }
    // it may have had more to say
    let mut again = Command::new(zdb.get_program());
    again.args(args);
    watchdog::output(again, watchdog::PATIENCE)
}

/// Whether nothing else was said than how far the walk is.
fn is_progress(messages: &[u8]) -> bool {
    let text = String::from_utf8_lossy(messages);
    text.split(['\r', '\n']).all(|line| {
        let line = line.trim();
        line.is_empty() || line.starts_with("loading ") || line.contains(" completed (")
    })
}

/// Whether the walk found everything in order. Whatever makes zdb end with another status than 0 prints one of the words.
fn is_well(text: &[u8]) -> bool {
    let text = String::from_utf8_lossy(text);
    text.contains("No leaks") && !["Error counts", "mismatch", "leaked", "error"].iter().any(|word| text.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{fixtures, judge};

    #[test]
    fn which_calls_walk() {
        for args in [&["-bcc", "p"][..], &["-e", "-p", "/b", "-bb", "p"], &["-CCuDDbbc", "p"]] {
            assert!(is_asked_for(args), "{args:?}");
        }
        for args in [&["-e", "-p", "/b", "-dddd", "bc"][..], &["-C", "p"], &["-o", "b=1", "-u", "p"]] {
            assert!(!is_asked_for(args), "{args:?}");
        }
    }

    #[test]
    fn a_walk_says_what_it_says_otherwise() {
        let images = fixtures::unpack("snaps-a");
        let args = ["-e", "-p", images.dir.to_str().expect("a path"), "-bcc", "snapsa"];
        let Some(zdb) = judge::tool("zdb") else { return };
        let brief = run(&zdb, &args).expect("zdb runs");
        let whole = judge::tool("zdb").and_then(|mut zdb| zdb.args(args).output().ok()).expect("zdb runs");
        assert_eq!(String::from_utf8_lossy(&brief.stdout), String::from_utf8_lossy(&whole.stdout));
        assert!(brief.status.success() && whole.status.success());
        assert!(is_progress(&brief.stderr));
    }

    #[test]
    fn trouble_keeps_its_status() {
        let images = fixtures::unpack("lost-a");
        let args = ["-e", "-p", images.dir.to_str().expect("a path"), "-bcc", "losta"];
        let Some(zdb) = judge::tool("zdb") else { return };
        let out = run(&zdb, &args).expect("zdb runs");
        assert_eq!(out.status.code(), Some(3), "{out:?}");
    }
}
