//! Validation of `sharenfs` and `sharesmb` (OpenZFS on Linux: `nfs_validate_shareopts`, `smb_validate_shareopts`).
//!
//! Nothing is shared here; but a pool may move to systems that do, and values that they would refuse are refused when
//! they are set.

/// Options of exports(5) that are accepted unchanged.
const EXPORTS: [&str; 28] = [
    "all_squash",
    "anongid",
    "anonuid",
    "async",
    "auth_nlm",
    "crossmnt",
    "fsid",
    "fsuid",
    "hide",
    "insecure",
    "insecure_locks",
    "mountpoint",
    "mp",
    "no_acl",
    "no_all_squash",
    "no_auth_nlm",
    "no_root_squash",
    "no_subtree_check",
    "no_wdelay",
    "nohide",
    "refer",
    "replicas",
    "root_squash",
    "secure",
    "secure_locks",
    "subtree_check",
    "sync",
    "wdelay",
];
/// Options of Solaris that are translated to some of those.
const SOLARIS: [&str; 4] = ["anon", "nosub", "root_mapping", "sec"];

/// Returns whether `text` can be a value of `sharenfs` or `sharesmb`.
pub(super) fn are_options(property: &str, text: &str) -> bool {
    if matches!(text, "on" | "off") {
        return true;
    }
    if property == "sharesmb" || text.is_empty() || text.contains(['\x07', '\x08', '\x0c', '\n', '\r']) {
        return false;
    }
    text.split(',').filter(|option| !option.is_empty()).all(|option| {
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        match key {
            "ro" | "rw" => are_hosts(value),
            _ => EXPORTS.contains(&key) || SOLARIS.contains(&key),
        }
    })
}

/// Returns whether the text is a list of hosts with colons between them; an IPv6 address is in brackets, possibly with
/// a prefix length after it.
fn are_hosts(text: &str) -> bool {
    let mut rest = text;
    loop {
        let after = match rest.strip_prefix('[') {
            Some(address) => match address.split_once(']') {
                Some((_, after)) if after.is_empty() || after.starts_with(['/', ':']) => after,
                _ => return false,
            },
            None => rest,
        };
        match after.split_once(':') {
            Some((_, next)) => rest = next,
            None => return true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::are_options;

    #[test]
    fn shares_have_known_options() {
        for good in [
            "on",
            "off",
            "ro",
            "rw=host",
            "rw=@10.0.0.0/8:*.example.org,sync",
            "ro=[fe80::1]:b",
            "rw=[::1]/64:b",
            ",anon=0,",
        ] {
            assert!(are_options("sharenfs", good), "{good}");
        }
        for bad in ["", "x", "rw,x=1", "ro=[fe80::1", "rw=[::1]x", "async\nsync", "RW"] {
            assert!(!are_options("sharenfs", bad), "{bad}");
        }
        assert!(are_options("sharesmb", "on") && are_options("sharesmb", "off"));
        assert!(!are_options("sharesmb", "name=x") && !are_options("sharesmb", ""));
    }
}
