//! Pieces of output that the verbs share.

use zpl::{FileFlags, Kind, Node, Time};

use crate::console;

/// `drwxr-xr-x`.
pub(super) fn mode(node: &Node) -> String {
    let mode = node.attrs().mode;
    let mut out = String::with_capacity(11);
    out.push(match node.kind() {
        Kind::File => '-',
        kind => kind.letter(),
    });
    for (shift, special, set, both) in [(6, 0o4000, 'S', 's'), (3, 0o2000, 'S', 's'), (0, 0o1000, 'T', 't')] {
        let bits = mode >> shift;
        out.push(if bits & 4 != 0 { 'r' } else { '-' });
        out.push(if bits & 2 != 0 { 'w' } else { '-' });
        out.push(match (mode & special != 0, bits & 1 != 0) {
            (false, false) => '-',
            (false, true) => 'x',
            (true, false) => set,
            (true, true) => both,
        });
    }
    out
}

/// The mode as `ls` shows it: with a `+` after it if there is an ACL that says more.
pub(super) fn mode_and_list(node: &Node) -> String {
    let posix = || [node.posix_acl(), node.posix_default_acl()].iter().any(|acl| matches!(acl, Ok(Some(_))));
    let more = !node.attrs().flags.has(FileFlags::ACL_TRIVIAL) || posix();
    mode(node) + if more && node.kind() != Kind::Symlink { "+" } else { "" }
}

/// Local date and time; `full` with nanoseconds and zone.
pub(super) fn time(t: Time, full: bool) -> String {
    let stamp = jiff::Timestamp::new(t.sec, i32::try_from(t.nsec).unwrap_or(0));
    match stamp {
        Ok(stamp) => {
            let local = stamp.to_zoned(console::time_zone());
            local.strftime(if full { "%Y-%m-%d %H:%M:%S.%9f %z" } else { "%Y-%m-%d %H:%M" }).to_string()
        }
        Err(_) => format!("{}.{:09}", t.sec, t.nsec),
    }
}
