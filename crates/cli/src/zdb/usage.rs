//! The usage text.

/// Printed on standard error when options are wrong, and by `zuse help zdb`.
pub(crate) const TEXT: &str = "\
Usage:\tzdb [-AbcdDFGhijkLMPsTuvX] [-e [-V] [-p <path> ...]] [-o <var>=<value>]...
\t\t[-t <txg>] [-U <cache>] [-K <key>]
\t\t<poolname>[/<dataset | objset id>] [<object | range> ...]
\tzdb [-v] <bookmark>
\tzdb -C [-U <cache>] [<poolname>]
\tzdb -l [-jqu] <device>
\tzdb -m [-LP] [-e [-p <path> ...]] <poolname> [<vdev> [<metaslab> ...]]
\tzdb -R [-e [-p <path> ...]] <poolname> <vdev>:<offset>:[<lsize>/]<psize>[:<flags>] ...
\tzdb -E <word0>:<word1>:...:<word15>
\tzdb -S [-e [-p <path> ...]] <poolname>
\tzdb -O [-v] [-e [-p <path> ...]] [-K <key>] <dataset> <path>
\tzdb -r [-e [-p <path> ...]] [-K <key>] <dataset> <path> <destination>
\tzdb -r -O [-e [-p <path> ...]] [-K <key>] <dataset> <object> <destination>
\tzdb -B [-e [-p <path> ...]] <poolname>/<objset id> [<flags>]

    A range of objects is <start>:<end>[:<flags>]; an end of -1 is the last one. Flags choose
    types: A all, d directories, f files, m space maps, z ZAPs; - in front leaves a type out.

    What to show (twice for more; without any of these, all of it but -B -E -O -r -R -S -y):
        -b --block-stats             count all blocks, and compare with the space maps
           --bin=(lsize|psize|asize) sort blocks by this size alone
           --class=(normal|special|dedup|other)[,...]
                                     sort by size only blocks of these classes
        -B --backup                  a send stream of an object set; flags are of eLcw
        -c --checksum                read and check metadata; with -cc all blocks
        -C --config                  configuration
        -d --datasets                datasets and their objects
        -D --dedup-stats             dedup tables
        -E --embedded-block-pointer  data of an embedded block pointer
        -h --history                 history
        -i --intent-logs             intent logs
        -l --label                   labels of a device
        -m --metaslabs               metaslabs and space maps
           --allocated-map           with -m: allocated ranges
        -M --metaslab-groups         free space of vdevs by size
        -O --object-lookups          the object of a file, by its path
        -r --copy-object             copy a file out
        -R --read-block              a block, by its place
        -s --io-stats                reads and errors
        -S --simulate-dedup          what dedup would save
        -T --brt-stats               cloned blocks
        -u --uberblock               uberblock
        -y --livelist                livelists of destroyed clones against space maps
        -v --verbose                 more of everything

    How:
        -A --ignore-assertions       twice: open the pool though devices are missing
        -e --exported                look for the pool among devices
        -F --automatic-rewind        fall back to an older state (always done)
        -G --dump-debug-msg          accepted, nothing is kept to be dumped
        -I --inflight=NUMBER         accepted
        -j --json                    as JSON: -l, -u, -C, -m, -b, -c, -d, -i, -h, -R
        -k --checkpointed-state      as of the checkpoint
        -K --key=KEY                 key of an encrypted dataset
        -L --disable-leak-tracking   do not compare with space maps
        -N --numeric                 the dataset is told by its number
        -o --option=NAME=VALUE       set a tunable
        -p --path=PATH               where devices are (with -e)
        -P --parseable               numbers in full
        -q --skip-label              uberblocks without labels
        -t --txg=NUMBER              the newest txg to look at
        -U --cachefile=PATH          a cache file of OpenZFS
        -V --verbatim                accepted
        -x --dump-blocks=DIR         keep what is read of each device in a file of DIR
        -X --extreme-rewind          as -F
        -Y --all-reconstruction      try all combinations of split blocks
        -Z --zstd-headers            headers of zstd blocks
";
