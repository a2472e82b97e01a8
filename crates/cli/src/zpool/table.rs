//! The commands of `zpool`, with their options.

use super::{
    add, attach, checkpoint, clear, create, ddtprune, destroy, events, export, get, history, import, iostat,
    labelclear, list, online, reguid, remove, scrub, set, status, sync, trim, upgrade, wait,
};
use crate::args::{
    ALLOW_ASHIFT, ALLOW_IN_USE, ALLOW_REPLICATION, JSON_FLAT_VDEVS, JSON_INT, JSON_POOL_KEY_GUID, Long, POWER,
    REWIND_TO_CHECKPOINT, SIZE, TYPES,
};
use crate::command::Command;
use crate::version;

const J: &[Long] = &[("json", 'j')];
const JSON_GUID: &[Long] = &[("json", 'j'), ("json-int", JSON_INT), ("json-pool-key-guid", JSON_POOL_KEY_GUID)];
const JUST_POWER: &[Long] = &[("power", POWER)];
const STATUS: &[Long] = &[
    ("power", POWER),
    ("json", 'j'),
    ("json-int", JSON_INT),
    ("json-flat-vdevs", JSON_FLAT_VDEVS),
    ("json-pool-key-guid", JSON_POOL_KEY_GUID),
];
const ADD: &[Long] = &[
    ("allow-in-use", ALLOW_IN_USE),
    ("allow-replication-mismatch", ALLOW_REPLICATION),
    ("allow-ashift-mismatch", ALLOW_ASHIFT),
];
const CREATE: &[Long] = &[("size", SIZE)];
const INITIALIZE: &[Long] =
    &[("cancel", 'c'), ("suspend", 's'), ("uninit", 'u'), ("wait", 'w'), ("all", 'a'), ("zero", 'z')];
const TRIM: &[Long] = &[("cancel", 'c'), ("secure", 'd'), ("rate", 'r'), ("suspend", 's'), ("wait", 'w'), ("all", 'a')];
const CONDENSE: &[Long] = &[("type", 't'), ("all", 'a'), ("cancel", 'c'), ("wait", 'w'), ("types", TYPES)];
const IMPORT: &[Long] = &[("rewind-to-checkpoint", REWIND_TO_CHECKPOINT)];

/// All commands, in the groups of the usage text.
pub(super) static GROUPS: &[&[Command]] = &[
    &[Command { name: "version", usage: "\tversion [-j]\n", options: "j", longs: J, run: Some(version::run) }],
    &[
        Command {
            name: "create",
            usage: concat!(
                "\tcreate [-fnd] [-o property=value] ... \n",
                "\t    [-O file-system-property=value] ... \n",
                "\t    [-m mountpoint] [-R root] [--size size] <pool> <vdev> ...\n",
            ),
            options: ":fndR:m:o:O:t:\u{e005}:",
            longs: CREATE,
            run: Some(create::run),
        },
        Command {
            name: "destroy",
            usage: "\tdestroy [-f] <pool>\n",
            options: "f",
            longs: &[],
            run: Some(destroy::run),
        },
    ],
    &[
        Command {
            name: "add",
            usage: "\tadd [-afgLnP] [-o property=value] <pool> <vdev> ...\n",
            options: "fgLno:P",
            longs: ADD,
            run: Some(add::run),
        },
        Command {
            name: "remove",
            usage: "\tremove [-npsw] <pool> <device> ...\n",
            options: "npsw",
            longs: &[],
            run: Some(remove::run),
        },
    ],
    &[Command {
        name: "labelclear",
        usage: "\tlabelclear [-f] <vdev>\n",
        options: "f",
        longs: &[],
        run: Some(labelclear::run),
    }],
    &[
        Command {
            name: "checkpoint",
            usage: "\tcheckpoint [-d [-w]] <pool> ...\n",
            options: ":dw",
            longs: &[("discard", 'd'), ("wait", 'w')],
            run: Some(checkpoint::run),
        },
        Command {
            name: "prefetch",
            usage: "\tprefetch [-t <type>] <pool>\n",
            options: "t:",
            longs: &[],
            run: Some(ddtprune::prefetch),
        },
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
            run: Some(iostat::run),
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
            longs: JUST_POWER,
            run: Some(online::online),
        },
        Command {
            name: "offline",
            usage: "\toffline [--power]|[[-f][-t]] <pool> <device> ...\n",
            options: "ft",
            longs: JUST_POWER,
            run: Some(online::offline),
        },
        Command {
            name: "clear",
            usage: "\tclear [[--power]|[-nF]] <pool> [device]\n",
            options: "FnX",
            longs: JUST_POWER,
            run: Some(clear::run),
        },
        Command {
            name: "reopen",
            usage: "\treopen [-n] <pool>\n",
            options: "n",
            longs: &[],
            run: Some(online::reopen),
        },
    ],
    &[
        Command {
            name: "attach",
            usage: "\tattach [-fsw] [-o property=value] <pool> <vdev> <new-device>\n",
            options: "fo:sw",
            longs: &[],
            run: Some(attach::attach),
        },
        Command {
            name: "detach",
            usage: "\tdetach <pool> <device>\n",
            options: "",
            longs: &[],
            run: Some(attach::detach),
        },
        Command {
            name: "replace",
            usage: "\treplace [-fsw] [-o property=value] <pool> <device> [new-device]\n",
            options: "fo:sw",
            longs: &[],
            run: Some(attach::replace),
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
            usage: "\tinitialize [-c | -s | -u] [-w] [-z] <-a | <pool> [<device> ...]>\n",
            options: "acsuwz",
            longs: INITIALIZE,
            run: Some(trim::initialize),
        },
        Command {
            name: "resilver",
            usage: "\tresilver <pool> ...\n",
            options: "",
            longs: &[],
            run: Some(scrub::resilver),
        },
        Command {
            name: "scrub",
            usage: "\tscrub [-e | -s | -p | -C | -E | -S] [-w] <-a | <pool> [<pool> ...]>\n",
            options: "aspweCE:S:",
            longs: &[],
            run: Some(scrub::run),
        },
        Command {
            name: "trim",
            usage: "\ttrim [-dw] [-r <rate>] [-c | -s] <-a | <pool> [<device> ...]>\n",
            options: "acdr:sw",
            longs: TRIM,
            run: Some(trim::trim),
        },
        Command {
            name: "condense",
            usage: "\tcondense [-t <type>] [-c | -w] [-a | <pool> ...]\n\tcondense --types\n",
            options: "at:cw",
            longs: CONDENSE,
            run: Some(sync::condense),
        },
    ],
    &[
        Command {
            name: "import",
            usage: concat!(
                "\timport [-d dir] [-D]\n",
                "\timport [-o mntopts] [-o property=value] ... \n",
                "\t    [-d dir | -c cachefile] [-D] [-l [-L keylocation]] [-f] [-m] [-N] [-R root] [-F [-n]]\n",
                "\t    [-T txg] -a\n",
                "\timport [-o mntopts] [-o property=value] ... \n",
                "\t    [-d dir | -c cachefile] [-D] [-l [-L keylocation]] [-f] [-m] [-N] [-R root] [-F [-n]]\n",
                "\t    [-t] [-T txg] [--rewind-to-checkpoint] <pool | id> [newpool]\n",
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
            run: Some(upgrade::run),
        },
        Command {
            name: "reguid",
            usage: "\treguid [-g guid] <pool>\n",
            options: "g:",
            longs: &[],
            run: Some(reguid::run),
        },
    ],
    &[
        Command {
            name: "history",
            usage: "\thistory [-il] [<pool>] ...\n",
            options: "li",
            longs: &[],
            run: Some(history::run),
        },
        Command {
            name: "events",
            usage: "\tevents [-vHf [pool] | -c]\n",
            options: "vHfc",
            longs: &[],
            run: Some(events::run),
        },
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
            run: Some(set::run),
        },
        Command { name: "sync", usage: "\tsync [pool] ...\n", options: "f", longs: &[], run: Some(sync::run) },
    ],
    &[Command {
        name: "wait",
        usage: "\twait [-Hp] [-T d|u] [-t <activity>[,...]] <pool> [interval]\n",
        options: "HpT:t:",
        longs: &[],
        run: Some(wait::run),
    }],
    &[Command {
        name: "ddtprune",
        usage: "\tddtprune -d|-p <amount> <pool>\n",
        options: "d:p:",
        longs: &[],
        run: Some(ddtprune::run),
    }],
];
