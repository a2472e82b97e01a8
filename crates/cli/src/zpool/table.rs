//! The commands of `zpool`, with their options.

use super::{export, get, history, import, list, status, version};
use crate::args::{JSON_FLAT_VDEVS, JSON_INT, JSON_POOL_KEY_GUID, Long, POWER, REWIND_TO_CHECKPOINT};
use crate::command::Command;

const J: &[Long] = &[("json", 'j')];
const JSON_GUID: &[Long] = &[("json", 'j'), ("json-int", JSON_INT), ("json-pool-key-guid", JSON_POOL_KEY_GUID)];
const STATUS: &[Long] = &[
    ("power", POWER),
    ("json", 'j'),
    ("json-int", JSON_INT),
    ("json-flat-vdevs", JSON_FLAT_VDEVS),
    ("json-pool-key-guid", JSON_POOL_KEY_GUID),
];
const IMPORT: &[Long] = &[("rewind-to-checkpoint", REWIND_TO_CHECKPOINT)];

/// All commands, in the groups of the usage text.
pub(super) static GROUPS: &[&[Command]] = &[
    &[Command { name: "version", usage: "\tversion [-j]\n", options: "j", longs: J, run: Some(version) }],
    &[
        Command {
            name: "create",
            usage: concat!(
                "\tcreate [-fnd] [-o property=value] ... \n",
                "\t    [-O file-system-property=value] ... \n",
                "\t    [-m mountpoint] [-R root] <pool> <vdev> ...\n",
            ),
            options: ":fndR:m:o:O:t:",
            longs: &[],
            run: None,
        },
        Command { name: "destroy", usage: "\tdestroy [-f] <pool>\n", options: "f", longs: &[], run: None },
    ],
    &[
        Command {
            name: "add",
            usage: "\tadd [-afgLnP] [-o property=value] <pool> <vdev> ...\n",
            options: "fgLno:P",
            longs: &[],
            run: None,
        },
        Command {
            name: "remove",
            usage: "\tremove [-npsw] <pool> <device> ...\n",
            options: "npsw",
            longs: &[],
            run: None,
        },
    ],
    &[Command { name: "labelclear", usage: "\tlabelclear [-f] <vdev>\n", options: "f", longs: &[], run: None }],
    &[
        Command {
            name: "checkpoint",
            usage: "\tcheckpoint [-d [-w]] <pool> ...\n",
            options: ":dw",
            longs: &[],
            run: None,
        },
        Command { name: "prefetch", usage: "\tprefetch [-t <type>] <pool>\n", options: "t:", longs: &[], run: None },
    ],
    &[
        Command {
            name: "list",
            usage: concat!(
                "\tlist [-gHLpPv] [-o property[,...]] [-j [--json-int, --json-pool-key-guid]] ...\n",
                "\t    [-T d|u] [pool] [interval [count]]\n",
            ),
            options: ":gjHLo:pPT:v",
            longs: JSON_GUID,
            run: Some(list::run),
        },
        Command {
            name: "iostat",
            usage: concat!(
                "\tiostat [[[-c [script1,script2,...][-lq]]|[-rw]] [-T d | u] [-ghHLpPvy]\n",
                "\t    [[pool ...]|[pool vdev ...]|[vdev ...]] [[-n] interval [count]]\n",
            ),
            options: "c:gLPT:vyhplqrwnH",
            longs: &[],
            run: None,
        },
        Command {
            name: "status",
            usage: concat!(
                "\tstatus [-DdegiLPpstvx] [-c script1[,script2,...]] ...\n",
                "\t    [-j|--json [--json-flat-vdevs] [--json-int] [--json-pool-key-guid]] ...\n",
                "\t    [-T d|u] [--power] [pool] [interval [count]]\n",
            ),
            options: "c:jdDegiLpPstT:vx",
            longs: STATUS,
            run: Some(status::run),
        },
    ],
    &[
        Command {
            name: "online",
            usage: "\tonline [--power][-e] <pool> <device> ...\n",
            options: "e",
            longs: &[],
            run: None,
        },
        Command {
            name: "offline",
            usage: "\toffline [--power]|[[-f][-t]] <pool> <device> ...\n",
            options: "ft",
            longs: &[],
            run: None,
        },
        Command {
            name: "clear",
            usage: "\tclear [[--power]|[-nF]] <pool> [device]\n",
            options: "FnX",
            longs: &[],
            run: None,
        },
        Command { name: "reopen", usage: "\treopen [-n] <pool>\n", options: "n", longs: &[], run: None },
    ],
    &[
        Command {
            name: "attach",
            usage: "\tattach [-fsw] [-o property=value] <pool> <vdev> <new-device>\n",
            options: "fo:sw",
            longs: &[],
            run: None,
        },
        Command { name: "detach", usage: "\tdetach <pool> <device>\n", options: "", longs: &[], run: None },
        Command {
            name: "replace",
            usage: "\treplace [-fsw] [-o property=value] <pool> <device> [new-device]\n",
            options: "fo:sw",
            longs: &[],
            run: None,
        },
        Command {
            name: "split",
            usage: concat!(
                "\tsplit [-gLnPl] [-R altroot] [-o mntopts]\n",
                "\t    [-o property=value] <pool> <newpool> [<device> ...]\n",
            ),
            options: ":gLR:lno:P",
            longs: &[],
            run: None,
        },
    ],
    &[
        Command {
            name: "initialize",
            usage: "\tinitialize [-c | -s | -u] [-w] <-a | <pool> [<device> ...]>\n",
            options: "acsuw",
            longs: &[],
            run: None,
        },
        Command { name: "resilver", usage: "\tresilver <pool> ...\n", options: "", longs: &[], run: None },
        Command {
            name: "scrub",
            usage: "\tscrub [-e | -s | -p | -C | -E | -S] [-w] <-a | <pool> [<pool> ...]>\n",
            options: "aspweCE:S:",
            longs: &[],
            run: None,
        },
        Command {
            name: "trim",
            usage: "\ttrim [-dw] [-r <rate>] [-c | -s] <-a | <pool> [<device> ...]>\n",
            options: "acdr:sw",
            longs: &[],
            run: None,
        },
    ],
    &[
        Command {
            name: "import",
            usage: concat!(
                "\timport [-d dir] [-D]\n",
                "\timport [-d dir] [-D] [-f] [-m] [-N] [-R root] [-T txg] [-l [-L keylocation]]\n",
                "\t    -o readonly=on -a\n",
                "\timport [-d dir] [-D] [-f] [-m] [-N] [-R root] [-T txg] [-l [-L keylocation]]\n",
                "\t    [--rewind-to-checkpoint] -o readonly=on <pool | id> [newpool]\n",
            ),
            options: ":aCc:d:DEfFlmnNo:R:stT:VXL:",
            longs: IMPORT,
            run: Some(import::run),
        },
        Command {
            name: "export",
            usage: "\texport [-af] <pool> ...\n",
            options: "afF",
            longs: &[],
            run: Some(export::run),
        },
        Command {
            name: "upgrade",
            usage: "\tupgrade\n\tupgrade -v\n\tupgrade [-V version] <-a | pool ...>\n",
            options: ":avV:",
            longs: &[],
            run: None,
        },
        Command { name: "reguid", usage: "\treguid [-g guid] <pool>\n", options: "g:", longs: &[], run: None },
    ],
    &[
        Command {
            name: "history",
            usage: "\thistory [-il] [<pool>] ...\n",
            options: "li",
            longs: &[],
            run: Some(history::run),
        },
        Command { name: "events", usage: "\tevents [-vHf [pool] | -c]\n", options: "vHfc", longs: &[], run: None },
    ],
    &[
        Command {
            name: "get",
            usage: concat!(
                "\tget [-Hp] [-j [--json-int, --json-pool-key-guid]] ...\n",
                "\t    [-o \"all\" | field[,...]] <\"all\" | property[,...]> <pool> ...\n",
            ),
            options: ":jHpo:",
            longs: JSON_GUID,
            run: Some(get::run),
        },
        Command {
            name: "set",
            usage: "\tset <property=value> <pool>\n\tset <vdev_property=value> <pool> <vdev>\n",
            options: "",
            longs: &[],
            run: None,
        },
        Command { name: "sync", usage: "\tsync [pool] ...\n", options: "f", longs: &[], run: None },
    ],
    &[Command {
        name: "wait",
        usage: "\twait [-Hp] [-T d|u] [-t <activity>[,...]] <pool> [interval]\n",
        options: "HpT:t:",
        longs: &[],
        run: None,
    }],
    &[Command {
        name: "ddtprune",
        usage: "\tddtprune -d|-p <amount> <pool>\n",
        options: "d:p:",
        longs: &[],
        run: None,
    }],
];
