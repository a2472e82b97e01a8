//! The commands of `zfs`, with their options.

use super::{
    bookmark, change_key, clone, create, destroy, diff, get, hold, holds, inherit, list, load_key, mount, rename,
    rollback, set, snapshot, upgrade, userspace, wait,
};
use crate::args::{JSON_INT, Long};
use crate::command::Command;
use crate::version;

const J: &[Long] = &[("json", 'j')];
const JSON: &[Long] = &[("json", 'j'), ("json-int", JSON_INT)];
const SEND: &[Long] = &[
    ("replicate", 'R'),
    ("skip-missing", 's'),
    ("redact", 'd'),
    ("props", 'p'),
    ("parsable", 'P'),
    ("dedup", 'D'),
    ("proctitle", 'V'),
    ("verbose", 'v'),
    ("dryrun", 'n'),
    ("large-block", 'L'),
    ("embed", 'e'),
    ("resume", 't'),
    ("compressed", 'c'),
    ("raw", 'w'),
    ("backup", 'b'),
    ("holds", 'h'),
    ("saved", 'S'),
    ("exclude", 'X'),
    ("no-preserve-encryption", 'U'),
];

/// All commands, in the groups of the usage text.
pub(super) static GROUPS: &[&[Command]] = &[
    &[Command { name: "version", usage: "\tversion [-j]\n", options: "j", longs: J, run: Some(version::run) }],
    &[
        Command {
            name: "create",
            usage: concat!(
                "\tcreate [-Pnpuv] [-o property=value] ... <filesystem>\n",
                "\tcreate [-Pnpsv] [-b blocksize] [-o property=value] ... -V <size> <volume>\n",
            ),
            options: ":PV:b:nso:puv",
            longs: &[],
            run: Some(create::run),
        },
        Command {
            name: "destroy",
            usage: concat!(
                "\tdestroy [-fnpRrv] <filesystem|volume>\n",
                "\tdestroy [-dnpRrv] <filesystem|volume>@<snap>[%<snap>][,...]\n",
                "\tdestroy <filesystem|volume>#<bookmark>\n",
            ),
            options: "vpndfrR",
            longs: &[],
            run: Some(destroy::run),
        },
    ],
    &[
        Command {
            name: "snapshot",
            usage: "\tsnapshot [-r] [-o property=value] ... <filesystem|volume>@<snap> ...\n",
            options: "ro:",
            longs: &[],
            run: Some(snapshot::run),
        },
        Command {
            name: "rollback",
            usage: "\trollback [-rRf] <snapshot>\n",
            options: "rRf",
            longs: &[],
            run: Some(rollback::run),
        },
        Command {
            name: "clone",
            usage: "\tclone [-pu] [-o property=value] ... <snapshot> <filesystem|volume>\n",
            options: "o:pu",
            longs: &[],
            run: Some(clone::run),
        },
        Command {
            name: "promote",
            usage: "\tpromote <clone-filesystem>\n",
            options: "",
            longs: &[],
            run: Some(clone::promote),
        },
        Command {
            name: "rename",
            usage: concat!(
                "\trename [-f] <filesystem|volume|snapshot> <filesystem|volume|snapshot>\n",
                "\trename -p [-f] <filesystem|volume> <filesystem|volume>\n",
                "\trename -u [-f] <filesystem> <filesystem>\n",
                "\trename -r <snapshot> <snapshot>\n",
            ),
            options: "pruf",
            longs: &[],
            run: Some(rename::run),
        },
        Command {
            name: "bookmark",
            usage: "\tbookmark [-r] <snapshot|bookmark> <newbookmark>\n",
            options: "r",
            longs: &[],
            run: Some(bookmark::run),
        },
        Command {
            name: "diff",
            usage: "\tdiff [-FHth] <snapshot> [snapshot|filesystem]\n",
            options: "FHth",
            longs: &[],
            run: Some(diff::run),
        },
    ],
    &[Command {
        name: "list",
        usage: concat!(
            "\tlist [-Hp] [-j [--json-int]] [-r|-d max] [-o property[,...]] [-s property]...\n",
            "\t    [-S property]... [-t type[,...]] [filesystem|volume|snapshot] ...\n",
        ),
        options: "jHS:d:o:prs:t:",
        longs: JSON,
        run: Some(list::run),
    }],
    &[
        Command {
            name: "set",
            usage: "\tset [-u] <property=value> ... <filesystem|volume|snapshot> ...\n",
            options: "u",
            longs: &[],
            run: Some(set::run),
        },
        Command {
            name: "get",
            usage: concat!(
                "\tget [-rHp] [-j [--json-int]] [-d max] [-o \"all\" | field[,...]]\n",
                "\t    [-t type[,...]] [-s source[,...]]\n",
                "\t    <\"all\" | property[,...]> [filesystem|volume|snapshot|bookmark] ...\n",
            ),
            options: ":d:o:s:jrt:Hp",
            longs: JSON,
            run: Some(get::run),
        },
        Command {
            name: "inherit",
            usage: "\tinherit [-rS] <property> <filesystem|volume|snapshot> ...\n",
            options: "rS",
            longs: &[],
            run: Some(inherit::run),
        },
        Command {
            name: "upgrade",
            usage: "\tupgrade [-v]\n\tupgrade [-r] [-V version] <-a | filesystem ...>\n",
            options: "rvV:a",
            longs: &[],
            run: Some(upgrade::run),
        },
    ],
    &[
        Command {
            name: "userspace",
            usage: concat!(
                "\tuserspace [-Hinp] [-o field[,...]] [-s field] ...\n",
                "\t    [-S field] ... [-t type[,...]] <filesystem|snapshot|path>\n",
            ),
            options: "nHpo:s:S:t:i",
            longs: &[],
            run: Some(userspace::run),
        },
        Command {
            name: "groupspace",
            usage: concat!(
                "\tgroupspace [-Hinp] [-o field[,...]] [-s field] ...\n",
                "\t    [-S field] ... [-t type[,...]] <filesystem|snapshot|path>\n",
            ),
            options: "nHpo:s:S:t:i",
            longs: &[],
            run: Some(userspace::run),
        },
        Command {
            name: "projectspace",
            usage: concat!(
                "\tprojectspace [-Hp] [-o field[,...]] [-s field] ... \n",
                "\t    [-S field] ... <filesystem|snapshot|path>\n",
            ),
            options: "nHpo:s:S:t:i",
            longs: &[],
            run: Some(userspace::run),
        },
    ],
    &[Command {
        name: "project",
        usage: concat!(
            "\tproject [-d|-r] <directory|file ...>\n",
            "\tproject -c [-0] [-d|-r] [-p id] <directory|file ...>\n",
            "\tproject -C [-k] [-r] <directory ...>\n",
            "\tproject [-p id] [-r] [-s] <directory ...>\n",
        ),
        options: "0Ccdkp:rs",
        longs: &[],
        run: None,
    }],
    &[
        Command {
            name: "mount",
            usage: "\tmount [-j]\n\tmount [-flvO] [-o opts] <-a|-R filesystem|filesystem>\n",
            options: ":ajRlvo:Of",
            longs: J,
            run: Some(mount::mount),
        },
        Command {
            name: "unmount",
            usage: "\tunmount [-fu] <-a | filesystem|mountpoint>\n",
            options: "afu",
            longs: &[],
            run: Some(mount::unmount),
        },
        Command {
            name: "share",
            usage: "\tshare [-l] <-a [nfs|smb] | filesystem>\n",
            options: "al",
            longs: &[],
            run: Some(mount::mount),
        },
        Command {
            name: "unshare",
            usage: "\tunshare <-a [nfs|smb] | filesystem|mountpoint>\n",
            options: ":a",
            longs: &[],
            run: Some(mount::unmount),
        },
    ],
    &[
        Command {
            name: "send",
            usage: concat!(
                "\tsend [-DLPbcehnpsVvw] [-i|-I snapshot]\n",
                "\t     [-R [-X dataset[,dataset]...]]     <snapshot>\n",
                "\tsend [-DnVvPLecw] [-i snapshot|bookmark] <filesystem|volume|snapshot>\n",
                "\tsend [-DnPpVvLec] [-i bookmark|snapshot] --redact <bookmark> <snapshot>\n",
                "\tsend [-nVvPe] -t <receive_resume_token>\n",
                "\tsend [-PnVv] --saved filesystem\n",
            ),
            options: ":i:I:RsDpVvnPLeht:cwbd:SX:U",
            longs: SEND,
            run: Some(super::send::run),
        },
        Command {
            name: "receive",
            usage: concat!(
                "\treceive [-vMnsFhu] [-o <property>=<value>] ... [-x <property>] ...\n",
                "\t    <filesystem|volume|snapshot>\n",
                "\treceive [-vMnsFhu] [-o <property>=<value>] ... [-x <property>] ... \n",
                "\t    [-d | -e] <filesystem>\n",
                "\treceive -A <filesystem|volume>\n",
            ),
            options: ":o:x:dehMnuvFsAc",
            longs: &[],
            run: Some(super::receive::run),
        },
        Command {
            name: "redact",
            usage: "\tredact <snapshot> <bookmark> <redaction_snapshot> ...\n",
            options: "",
            longs: &[],
            run: None,
        },
    ],
    &[
        Command {
            name: "allow",
            usage: concat!(
                "\tallow <filesystem|volume>\n",
                "\tallow [-ldug] <\"everyone\"|user|group>[,...] <perm|@setname>[,...]\n",
                "\t    <filesystem|volume>\n",
                "\tallow [-ld] -e <perm|@setname>[,...] <filesystem|volume>\n",
                "\tallow -c <perm|@setname>[,...] <filesystem|volume>\n",
                "\tallow -s @setname <perm|@setname>[,...] <filesystem|volume>\n",
            ),
            options: "ldugcsep",
            longs: &[],
            run: None,
        },
        Command {
            name: "unallow",
            usage: concat!(
                "\tunallow [-rldug] <\"everyone\"|user|group>[,...]\n",
                "\t    [<perm|@setname>[,...]] <filesystem|volume>\n",
                "\tunallow [-rld] -e [<perm|@setname>[,...]] <filesystem|volume>\n",
                "\tunallow [-r] -c [<perm|@setname>[,...]] <filesystem|volume>\n",
                "\tunallow [-r] -s @setname [<perm|@setname>[,...]] <filesystem|volume>\n",
            ),
            options: "ldugcserp",
            longs: &[],
            run: None,
        },
    ],
    &[
        Command {
            name: "hold",
            usage: "\thold [-r] <tag> <snapshot> ...\n",
            options: "rt",
            longs: &[],
            run: Some(hold::run),
        },
        Command {
            name: "holds",
            usage: "\tholds [-rHp] <snapshot> ...\n",
            options: "rHp",
            longs: &[],
            run: Some(holds::run),
        },
        Command {
            name: "release",
            usage: "\trelease [-r] <tag> <snapshot> ...\n",
            options: "r",
            longs: &[],
            run: Some(hold::run),
        },
    ],
    &[
        Command {
            name: "load-key",
            usage: "\tload-key [-rn] [-L <keylocation>] <-a | filesystem|volume>\n",
            options: "anrL:",
            longs: &[],
            run: Some(load_key::run),
        },
        Command {
            name: "unload-key",
            usage: "\tunload-key [-r] <-a | filesystem|volume>\n",
            options: "anrL:",
            longs: &[],
            run: Some(load_key::run),
        },
        Command {
            name: "change-key",
            usage: concat!(
                "\tchange-key [-l] [-o keyformat=<value>]\n",
                "\t    [-o keylocation=<value>] [-o pbkdf2iters=<value>]\n",
                "\t    <filesystem|volume>\n",
                "\tchange-key -i [-l] <filesystem|volume>\n",
            ),
            options: "lio:",
            longs: &[],
            run: Some(change_key::run),
        },
    ],
    &[
        Command {
            name: "program",
            usage: concat!(
                "\tprogram [-jn] [-t <instruction limit>] [-m <memory limit (b)>]\n",
                "\t    <pool> <program file> [lua args...]\n",
            ),
            options: "nt:m:j",
            longs: J,
            run: None,
        },
        Command {
            name: "rewrite",
            usage: "\trewrite [-Prvx] [-o <offset>] [-l <length>] <directory|file ...>\n",
            options: "Pl:o:rvx",
            longs: &[],
            run: None,
        },
        Command {
            name: "wait",
            usage: "\twait [-t <activity>] <filesystem>\n",
            options: "t:",
            longs: &[],
            run: Some(wait::run),
        },
    ],
    &[
        Command { name: "zone", usage: "\tzone <nsfile> <filesystem>\n", options: "", longs: &[], run: None },
        Command { name: "unzone", usage: "\tunzone <nsfile> <filesystem>\n", options: "", longs: &[], run: None },
    ],
];
