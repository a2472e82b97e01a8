//! Receives that are interrupted and resumed.
#![allow(clippy::unwrap_used)]

mod support;
mod target;

use base::Errno;
use stream::recv::{Error, RecvArgs, discard};
use support::stream_of;
use target::Target;
use target::remake::{boundaries, parts, resumed_at};

fn resumable() -> RecvArgs {
    RecvArgs { resumable: true, ..RecvArgs::default() }
}

/// Returns the object and offset in the token of `fs`.
fn resume_point(target: &Target, fs: &str) -> (u64, u64) {
    let token = target.spa().view().unwrap().dataset(fs).unwrap().receive_resume_token().unwrap().unwrap();
    let list = stream::token::decode(&token).unwrap();
    (list.get_u64("object").unwrap(), list.get_u64("offset").unwrap())
}

#[test]
fn the_kernels_own_continuation_goes_on_where_a_cut_stream_ended() {
    let mut target = Target::new();
    for (cut, rest) in [("full-truncated", "resume-full"), ("incr-truncated", "resume-incr")] {
        let error = target.receive(&stream_of("stresume-a", cut), "recva/r", &resumable()).unwrap_err();
        assert_eq!(error.errno(), Errno::ZFS_ERR_STREAM_TRUNCATED, "{cut}: {error}");
        target.again();
        target
            .receive(&stream_of("stresume-a", rest), "recva/r", &resumable())
            .unwrap_or_else(|e| panic!("{rest}: {e}"));
    }
    let files = target.compare("stresume-a", &|name| name.starts_with("recva/r"), &|_| None);
    assert!(files > 50, "{files}");
    target.close();
}

#[test]
fn a_stream_cut_anywhere_is_whole_in_the_end() {
    let mut target = Target::new();
    let (full, part) = (stream_of("stbasic-a", "incr-bm"), stream_of("stbasic-a", "incr-from-bookmark"));
    for (bytes, cuts) in [(&full, 7), (&part, 7)] {
        let parts = parts(bytes);
        let ends = boundaries(&parts);
        let mut rest = bytes.clone();
        for n in 1..cuts {
            // the rest of the stream is cut in the middle again
            let at = if n % 2 == 0 { rest.len() / 2 } else { ends[parts.len() * n / cuts].min(rest.len() - 1) };
            let error = target.receive(&rest[..at], "recva/e0", &resumable()).unwrap_err();
            assert!(matches!(error, Error::Stream(stream::Error::Truncated { .. })), "{error}");
            let (object, offset) = resume_point(&target, "recva/e0");
            rest = resumed_at(&parts, object, offset);
        }
        target.receive(&rest, "recva/e0", &resumable()).unwrap();
    }
    target.compare("stbasic-a", &|name| name.starts_with("recva/e0"), &|_| None);
    target.again();
    target.compare("stbasic-a", &|name| name.starts_with("recva/e0"), &|_| None);
    target.close();
}

#[test]
fn what_does_not_fit_is_refused_and_what_is_there_can_be_dropped() {
    let mut target = Target::new();
    let full = stream_of("stbasic-a", "full");
    let all = parts(&full);
    target.receive(&full[..full.len() / 2], "recva/x", &resumable()).unwrap_err();
    let (object, offset) = resume_point(&target, "recva/x");
    // another position, another snapshot, the same stream from the start
    let elsewhere = resumed_at(&all, object, offset + 512);
    assert_eq!(target.receive(&elsewhere, "recva/x", &resumable()).unwrap_err().errno(), Errno::EINVAL);
    let other = resumed_at(&parts(&stream_of("stbasic-a", "live-nosnap")), object, offset);
    assert_eq!(target.receive(&other, "recva/x", &resumable()).unwrap_err().errno(), Errno::EINVAL);
    assert_eq!(target.receive(&full, "recva/x", &resumable()).unwrap_err().errno(), Errno::EBUSY);
    assert_eq!(resume_point(&target, "recva/x"), (object, offset));
    discard(target.spa(), "recva/x").unwrap();
    assert!(!target.has("recva/x"));
    assert_eq!(discard(target.spa(), "recva/x").unwrap_err().errno(), Errno::ENOENT);
    // below a file system that exists
    target.receive(&full, "recva/x", &resumable()).unwrap();
    let part = stream_of("stbasic-a", "incr-1-2");
    target.receive(&part[..part.len() / 2], "recva/x", &resumable()).unwrap_err();
    assert!(target.has("recva/x/%recv"));
    discard(target.spa(), "recva/x").unwrap();
    assert!(!target.has("recva/x/%recv"));
    assert_eq!(discard(target.spa(), "recva/x").unwrap_err().errno(), Errno::EINVAL);
    target.receive(&part, "recva/x", &resumable()).unwrap();
    target.close();
}
