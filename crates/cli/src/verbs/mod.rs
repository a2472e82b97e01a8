//! Zuse's own verbs: data out of `pool/fs[@snap][:/path]` and into `pool/fs:/path`, on an imported pool or directly
//! from devices.

mod cat;
mod change;
mod cp;
mod cp_in;
mod flags;
mod format;
mod kstat;
mod ls;
mod monitors;
mod nbd;
mod serve;
mod session;
mod signals;
mod sockets;
mod stat;
mod tar;
mod verify;
mod volume;
mod volumes;
mod zil;

use std::ffi::OsString;

use crate::args::{self, Long, Parsed};
use crate::command::report;
use crate::error::{Failure, Outcome};
use flags::{
    CHECKPOINT, DATASETS, DELEGATION, JSON, KSTAT, METRICS, NBD_AT, NO_MOUNTS, ON_DEMAND, SHA256, STOP, TLS,
    TLS_CERTIFICATES, TLS_VERIFY_PEER, WITH_LOG, ZVOL,
};

/// A verb.
struct Verb {
    name: &'static str,
    usage: &'static str,
    /// A description of one line.
    about: &'static str,
    /// Its own options besides the common ones.
    options: &'static str,
    longs: &'static [Long],
    run: fn(&Parsed) -> Outcome,
}

/// The options that select the pool's source.
const COMMON: &str = "d:L:T:";
const COMMON_LONGS: &[Long] = &[("rewind-to-checkpoint", CHECKPOINT)];

const VERBS: &[Verb] = &[
    Verb {
        name: "ls",
        usage: "ls [-alR] [--json] [--sha256] [--with-log] TARGET ...",
        about: "list files; with --json one object a line, all attributes",
        options: "alRj",
        longs: &[("json", JSON), ("sha256", SHA256), ("with-log", WITH_LOG)],
        run: ls::run,
    },
    Verb {
        name: "cat",
        usage: "cat [--with-log] TARGET ...",
        about: "write files, or whole volumes, to standard output",
        options: "",
        longs: &[("with-log", WITH_LOG)],
        run: cat::run,
    },
    Verb {
        name: "stat",
        usage: "stat TARGET ...",
        about: "all that is known of a file: times, flags, attributes, ACL",
        options: "",
        longs: &[],
        run: stat::run,
    },
    Verb {
        name: "cp",
        usage: "cp [-aqr] [--datasets] [--with-log] SOURCE ... DEST",
        about: "copy files and trees with owner, mode, times, links, holes, xattrs and ACLs: out of a pool (TARGET ... PATH),\n\
                \t\tinto one (PATH|TARGET ... POOL[/FS]:/PATH), within one and between two; with --datasets a dataset\n\
                \t\tand all below it to the host (volumes become files)",
        options: "aqrR",
        longs: &[("archive", 'a'), ("datasets", DATASETS), ("recursive", 'r'), ("quiet", 'q'), ("with-log", WITH_LOG)],
        run: cp::run,
    },
    Verb {
        name: "tar",
        usage: "tar [-q] [-x] [-f FILE] TARGET ...",
        about: "write trees as a PAX archive, to standard output or FILE; with -x read an archive (PAX, GNU, ustar)\n\
                \t\tinto a directory",
        options: "f:qx",
        longs: &[("file", 'f'), ("quiet", 'q'), ("extract", 'x')],
        run: tar::run,
    },
    Verb {
        name: "put",
        usage: "put POOL[/FS]:/PATH | POOL/VOLUME",
        about: "write standard input to a file, or to a volume from its first byte on",
        options: "",
        longs: &[],
        run: change::put,
    },
    Verb {
        name: "mkdir",
        usage: "mkdir [-p] [-m MODE] POOL[/FS]:/PATH ...",
        about: "make directories",
        options: "m:p",
        longs: &[("mode", 'm'), ("parents", 'p')],
        run: change::mkdir,
    },
    Verb {
        name: "rm",
        usage: "rm [-rf] POOL[/FS]:/PATH ...",
        about: "remove files; with -r directories and all in them",
        options: "frR",
        longs: &[("force", 'f'), ("recursive", 'r')],
        run: change::rm,
    },
    Verb {
        name: "mv",
        usage: "mv SOURCE ... DEST",
        about: "rename files, or move them to another dataset or pool (SOURCE and DEST are POOL[/FS]:/PATH)",
        options: "",
        longs: &[],
        run: change::mv,
    },
    Verb {
        name: "ln",
        usage: "ln POOL[/FS]:/FILE POOL[/FS]:/NAME | ln -s TEXT POOL[/FS]:/NAME",
        about: "give a file one more name, or its own in a directory; with -s make a symbolic link",
        options: "s",
        longs: &[("symbolic", 's')],
        run: change::ln,
    },
    Verb {
        name: "verify",
        usage: "verify [-jqv] POOL | DATASET[@SNAP]",
        about: "read every block: checksums, MACs, redundancy, space maps; what is damaged, by file",
        options: "jqv",
        longs: &[("json", 'j'), ("quiet", 'q'), ("verbose", 'v')],
        run: verify::run,
    },
    Verb {
        name: "zil",
        usage: "zil ls [-j] POOL | DATASET ...",
        about: "list what intent logs hold and no synced txg does: the records that the next import will replay",
        options: "j",
        longs: &[("json", JSON)],
        run: zil::run,
    },
    Verb {
        name: "kstat",
        usage: "kstat [-j] [POOL ...]",
        about: "figures of pools under OpenZFS's names: cache, logs of space changes",
        options: "j",
        longs: &[("json", 'j')],
        run: kstat::run,
    },
    Verb {
        name: "nbd",
        usage: "nbd [-r] [-u|--unix PATH] [-l|--listen ADDR[:PORT]] [-c|--connections N] [--tls off|on|require]\n\
                \t\t[--tls-certificates DIR] [--tls-verify-peer] [--with-log] VOLUME[@SNAP] ...",
        about: "serve volumes and their snapshots over NBD, on a Unix socket, a port of TCP or both, until it is told to end (SIGTERM,\n\
                \t\tSIGINT); exports have the names of their datasets, the first is the default one; with -r for reading only.\n\
                \t\tIt prints the URI of each socket. Certificates are files of DIR: server-cert.pem, server-key.pem, and with\n\
                \t\t--tls-verify-peer ca-cert.pem, of those who sign the certificates that clients have to show then; without TLS\n\
                \t\tTCP is neither encrypted nor asks who connects",
        options: "c:l:ru:\u{e01b}:\u{e01c}:\u{e01d}",
        longs: &[
            ("connections", 'c'),
            ("listen", 'l'),
            ("read-only", 'r'),
            ("tls", TLS),
            ("tls-certificates", TLS_CERTIFICATES),
            ("tls-verify-peer", TLS_VERIFY_PEER),
            ("unix", 'u'),
            ("with-log", WITH_LOG),
        ],
        run: nbd::run,
    },
    Verb {
        name: SERVE,
        usage: "serve [--delegation] [--no-mounts] [-i|--idle SECONDS] [--state DIR] [--zvol DIR] [--nbd ADDR[:PORT]|PATH] ...\n\
                \t\t[-c|--connections N] [--tls off|on|require] [--tls-certificates DIR] [--tls-verify-peer]\n\
                \t\t[--kstat DIR] [--metrics ADDR]\n\
                \tzuse serve --stop [--state DIR]",
        about: "keep the imported pools open and take requests to them, from many processes at once, until it is told to end\n\
                \t\t(--stop, SIGTERM, SIGINT); with --delegation from all users, with --idle until nobody has been connected for\n\
                \t\tso long, with --on-demand until nobody needs it; with --no-mounts it mounts no file system;\n\
                \t\twith --state for the pools of that state folder. With --nbd (a path, with a slash, is a Unix socket) it serves\n\
                \t\tall volumes over NBD, as 'zuse help nbd' says, with --zvol as files of a directory (DIR/POOL/VOLUME), which\n\
                \t\tlosetup makes block devices of. With --kstat it shows OpenZFS's kstats and tunables as files below DIR\n\
                \t\t(DIR/kstat, DIR/parameters); with --metrics it answers Prometheus at ADDR: PORT or HOST:PORT of TCP, without\n\
                \t\tencryption and for all who reach it, or the path of a Unix socket",
        options: "c:i:S:\u{e019}:\u{e01a}:\u{e01b}:\u{e01c}:\u{e01d}\u{e020}:\u{e021}:",
        longs: &[
            ("connections", 'c'),
            ("delegation", DELEGATION),
            ("idle", 'i'),
            ("kstat", KSTAT),
            ("metrics", METRICS),
            ("nbd", NBD_AT),
            ("no-mounts", NO_MOUNTS),
            ("on-demand", ON_DEMAND),
            ("state", 'S'),
            ("stop", STOP),
            ("tls", TLS),
            ("tls-certificates", TLS_CERTIFICATES),
            ("tls-verify-peer", TLS_VERIFY_PEER),
            ("zvol", ZVOL),
        ],
        run: serve::run,
    },
];

/// The verb that is about all pools.
const SERVE: &str = "serve";

impl Verb {
    /// Its options: most verbs are about targets, and have the common ones as well.
    fn options(&self) -> (String, Vec<Long>) {
        match self.name {
            SERVE => (self.options.to_owned(), self.longs.to_vec()),
            _ => (format!("{COMMON}{}", self.options), COMMON_LONGS.iter().chain(self.longs).copied().collect()),
        }
    }
}

/// Returns whether this is a verb that opens imported pools, with arguments that can be understood.
pub(crate) fn opens_imported(name: &str, args: &[OsString]) -> bool {
    let Some(verb) = VERBS.iter().find(|verb| verb.name == name && name != SERVE) else { return false };
    let (options, longs) = verb.options();
    args::parse(&format!(":{options}"), &longs, args).is_ok_and(|parsed| !parsed.has('d'))
}

/// Runs the verb `name`, if it is one.
pub(crate) fn run(name: &str, args: &[OsString]) -> Option<u8> {
    let verb = VERBS.iter().find(|v| v.name == name)?;
    let mut options = args.iter().take_while(|arg| *arg != "--");
    if options.any(|arg| arg == "--help" || arg == "-h" || arg == "-?") {
        print!("{}", usage_of(verb));
        return Some(0);
    }
    let (options, longs) = verb.options();
    let outcome =
        args::parse(&format!(":{options}"), &longs, args).map_err(Failure::from).and_then(|parsed| (verb.run)(&parsed));
    Some(outcome.unwrap_or_else(|failure| {
        let failure = match failure {
            Failure::Failed(why) if !why.is_empty() => Failure::Failed(format!("zuse {name}: {why}")),
            other => other,
        };
        let status = report(&failure);
        if matches!(failure, Failure::Usage(_)) {
            eprint!("{}", usage_of(verb));
        }
        status
    }))
}

/// The options of the verb `name`, short and long.
#[cfg(test)]
pub(crate) fn options(name: &str) -> Option<(String, &'static [Long])> {
    let verb = VERBS.iter().find(|verb| verb.name == name)?;
    Some((verb.options().0, verb.longs))
}

/// The help of the verb `name`, if it is one.
pub(crate) fn help(name: &str) -> Option<String> {
    VERBS.iter().find(|verb| verb.name == name).map(usage_of)
}

fn usage_of(verb: &Verb) -> String {
    let all = format!("usage: zuse {}\n\t{}\n\n", verb.usage, verb.about);
    if verb.name == SERVE {
        return format!(
            "{all}Exit status: 0 it ended as it was told, 1 it could not begin or a pool could not be closed, 2 bad usage.\n"
        );
    }
    let with_log = match verb.longs.iter().any(|(name, _)| *name == "with-log") {
        true => {
            "\t--with-log\tthe pool as it will be when its intent logs are replayed: done in memory, nothing is written\n"
        }
        false => "",
    };
    format!(
        "{all}A TARGET is POOL[/FS][@SNAP][:/PATH]. The pool is an imported one, or with -d one on devices:\n\
         \t-d DIR|DEVICE\twhere to look for the pool's devices (may be repeated); nothing is remembered, and\n\
         \t\t\tnothing written but by verbs that change files, which leave the pool exported\n\
         \t-L KEYLOCATION\ta key for encrypted datasets: file:///PATH, prompt, or keylocation for the place that the dataset\n\
         \t\t\tnames (may be repeated; each encryption root takes the one that fits)\n\
         \t-T TXG\t\tthe pool as it was at that txg\n\
         {with_log}\
         \t--rewind-to-checkpoint\n\
         Exit status: 0 all went well, 1 something failed or is damaged, 2 bad usage.\n"
    )
}

/// The lines about the verbs for the usage of `zuse`.
pub(crate) fn summary() -> String {
    VERBS.iter().map(|v| format!("\tzuse {}\n\t\t{}\n", v.usage, v.about)).collect()
}
