//! The grammar of vdevs on a command line.

/// The purpose of a top-level vdev (OpenZFS: `vdev_alloc_bias_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Bias {
    /// Intent logs.
    Log,
    /// Metadata, and small blocks.
    Special,
    /// The tables of dedup.
    Dedup,
}

impl Bias {
    /// Its name on the command line and on disk.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Bias::Log => "log",
            Bias::Special => "special",
            Bias::Dedup => "dedup",
        }
    }
}

/// How the devices of a top-level vdev go together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// One device.
    Single,
    /// Every device holds everything.
    Mirror,
    /// RAID-Z with this many parity columns.
    Raidz(u64),
    /// dRAID.
    Draid(DraidSpec),
}

/// The shape of a dRAID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DraidSpec {
    /// Parity columns of a group.
    pub nparity: u64,
    /// Data columns of a group.
    pub ndata: u64,
    /// Distributed spares.
    pub nspares: u64,
    /// Groups of a slice.
    pub ngroups: u64,
    /// Children of a failure group; all children without failure domains.
    pub nchildren: u64,
}

/// One top-level vdev.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopSpec {
    /// How its devices go together.
    pub group: Group,
    /// Its purpose; `None` for everything.
    pub bias: Option<Bias>,
    /// Its devices, as they were named.
    pub paths: Vec<String>,
}

/// Vdevs as a command line names them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VdevSpec {
    /// The top-level vdevs, in order.
    pub tops: Vec<TopSpec>,
    /// Hot spares.
    pub spares: Vec<String>,
    /// Caches (L2ARC).
    pub l2cache: Vec<String>,
}

/// A problem with vdevs on a command line. The text is what OpenZFS's `zpool` says.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SpecError(pub String);

/// The most children of a raidz or dRAID.
const CHILDREN_MAX: usize = 255;
/// The most parity columns.
const PARITY_MAX: u64 = 3;
/// The most distributed spares of a failure group.
const DRAID_SPARES_MAX: u64 = 100;
/// Data columns of a dRAID group where nobody says how many.
const DRAID_DATA_DEFAULT: u64 = 8;

fn invalid(text: impl std::fmt::Display) -> SpecError {
    SpecError(format!("invalid vdev specification: {text}"))
}

/// A word that begins a group of devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keyword {
    Mirror,
    Raidz(u64),
    Draid(u64),
    Bias(Bias),
    Spare,
    Cache,
}

impl Keyword {
    fn of(word: &str) -> Option<Keyword> {
        if let Some(parity) = word.strip_prefix("raidz") {
            return parity_of(parity).map(Keyword::Raidz);
        }
        if let Some(rest) = word.strip_prefix("draid") {
            return parity_of(rest.split(':').next().unwrap_or_default()).map(Keyword::Draid);
        }
        match word {
            "mirror" => Some(Keyword::Mirror),
            "spare" => Some(Keyword::Spare),
            "cache" => Some(Keyword::Cache),
            "log" => Some(Keyword::Bias(Bias::Log)),
            "special" => Some(Keyword::Bias(Bias::Special)),
            "dedup" => Some(Keyword::Bias(Bias::Dedup)),
            _ => None,
        }
    }

    const fn least(self) -> usize {
        match self {
            Keyword::Mirror => 2,
            Keyword::Raidz(parity) | Keyword::Draid(parity) => parity as usize + 1,
            Keyword::Bias(_) | Keyword::Spare | Keyword::Cache => 1,
        }
    }

    const fn type_name(self) -> &'static str {
        match self {
            Keyword::Mirror => "mirror",
            Keyword::Raidz(_) => "raidz",
            Keyword::Draid(_) => "draid",
            Keyword::Bias(bias) => bias.name(),
            Keyword::Spare => "spare",
            Keyword::Cache => "l2cache",
        }
    }
}

/// The digits behind `raidz` and `draid`; none is 1.
fn parity_of(digits: &str) -> Option<u64> {
    match digits {
        "" => Some(1),
        _ if digits.starts_with('0') => None,
        _ => digits.parse().ok().filter(|parity| (1..=PARITY_MAX).contains(parity)),
    }
}

impl VdevSpec {
    /// Reads the words of a command line.
    ///
    /// # Errors
    /// What `zpool` says of it. That devices exist is not looked at.
    pub fn parse(words: &[String]) -> Result<VdevSpec, SpecError> {
        let mut parser = Parser { rest: words, spec: VdevSpec::default(), bias: None, seen: Seen::default() };
        while let Some(word) = parser.rest.first() {
            match Keyword::of(word) {
                Some(keyword) => parser.group(word, keyword)?,
                None => parser.single(word),
            }
        }
        let (spec, seen) = (parser.spec, parser.seen);
        if spec.tops.is_empty() && spec.spares.is_empty() && spec.l2cache.is_empty() {
            return Err(invalid("at least one toplevel vdev must be specified"));
        }
        if seen.log && !spec.tops.iter().any(|top| top.bias == Some(Bias::Log)) {
            return Err(invalid("log requires at least 1 device"));
        }
        Ok(spec)
    }

    /// Whether a pool can be made of it: it needs a vdev for everything.
    ///
    /// # Errors
    /// What `zpool create` says.
    pub fn require_normal(&self) -> Result<(), SpecError> {
        if self.tops.iter().any(|top| top.bias.is_none()) {
            return Ok(());
        }
        Err(SpecError("at least one general top-level vdev must be specified".to_owned()))
    }

    /// All devices that it names, with whether each is to be a spare.
    pub fn paths(&self) -> impl Iterator<Item = (&str, bool)> {
        let tops = self.tops.iter().flat_map(|top| &top.paths).chain(&self.l2cache);
        tops.map(|path| (path.as_str(), false)).chain(self.spares.iter().map(|path| (path.as_str(), true)))
    }
}

#[derive(Default)]
struct Seen {
    log: bool,
    spare: bool,
    cache: bool,
}

struct Parser<'w> {
    rest: &'w [String],
    spec: VdevSpec,
    bias: Option<Bias>,
    seen: Seen,
}

/// `fgroup` and `fdomain` words among the devices of a dRAID.
#[derive(Default)]
struct Domains {
    groups: u64,
    domains: u64,
    /// Devices since the last of these words, and before it.
    count: u64,
    before: u64,
}

impl Parser<'_> {
    fn single(&mut self, word: &str) {
        self.rest = self.rest.get(1..).unwrap_or(&[]);
        self.spec.tops.push(TopSpec { group: Group::Single, bias: self.bias, paths: vec![word.to_owned()] });
    }

    fn group(&mut self, word: &str, keyword: Keyword) -> Result<(), SpecError> {
        let once = |seen: &mut bool, word: &str| {
            if std::mem::replace(seen, true) {
                return Err(invalid(format_args!("'{word}' can be specified only once")));
            }
            Ok(())
        };
        match keyword {
            Keyword::Bias(bias) => {
                if bias == Bias::Log {
                    once(&mut self.seen.log, "log")?;
                }
                self.bias = Some(bias);
                self.rest = self.rest.get(1..).unwrap_or(&[]);
                return Ok(());
            }
            Keyword::Spare => {
                once(&mut self.seen.spare, "spare")?;
                self.bias = None;
            }
            Keyword::Cache => {
                once(&mut self.seen.cache, "cache")?;
                self.bias = None;
            }
            _ => {}
        }
        if self.bias == Some(Bias::Log) && keyword != Keyword::Mirror {
            return Err(invalid(format_args!("unsupported 'log' device: {}", keyword.type_name())));
        }
        let (paths, domains) = self.devices();
        self.check_count(word, keyword, paths.len())?;
        domains.check(word, keyword)?;
        let paths = domains.in_order(paths);
        let group = match keyword {
            Keyword::Spare => {
                self.spec.spares = paths;
                return Ok(());
            }
            Keyword::Cache => {
                self.spec.l2cache = paths;
                return Ok(());
            }
            Keyword::Mirror | Keyword::Bias(_) => Group::Mirror,
            Keyword::Raidz(parity) => Group::Raidz(parity),
            Keyword::Draid(parity) => Group::Draid(DraidSpec::parse(word, parity, paths.len() as u64, &domains)?),
        };
        self.spec.tops.push(TopSpec { group, bias: self.bias, paths });
        Ok(())
    }

    /// The devices behind a keyword.
    fn devices(&mut self) -> (Vec<String>, Domains) {
        let (mut paths, mut domains) = (Vec::new(), Domains::default());
        let mut used = 1;
        for word in self.rest.iter().skip(1).take_while(|word| Keyword::of(word).is_none()) {
            let mark = match word.as_str() {
                "fgroup" | "failure_group" => Some(&mut domains.groups),
                "fdomain" | "failure_domain" => Some(&mut domains.domains),
                _ => None,
            };
            match mark {
                Some(_) if domains.before != 0 && domains.before != domains.count => break,
                Some(mark) => {
                    *mark += 1;
                    domains.before = domains.count;
                    domains.count = 0;
                }
                None => {
                    if domains.groups + domains.domains != 0 {
                        domains.count += 1;
                    }
                    paths.push(word.clone());
                }
            }
            used += 1;
        }
        self.rest = self.rest.get(used..).unwrap_or(&[]);
        (paths, domains)
    }

    fn check_count(&self, word: &str, keyword: Keyword, count: usize) -> Result<(), SpecError> {
        let least = keyword.least();
        if count < least {
            return Err(invalid(format_args!("{word} requires at least {least} devices")));
        }
        if matches!(keyword, Keyword::Raidz(_) | Keyword::Draid(_)) && count > CHILDREN_MAX {
            return Err(invalid(format_args!("{word} supports no more than {CHILDREN_MAX} devices")));
        }
        Ok(())
    }
}

impl Domains {
    fn check(&self, word: &str, keyword: Keyword) -> Result<(), SpecError> {
        let (groups, domains) = (self.groups, self.domains);
        if groups + domains == 0 {
            return Ok(());
        }
        if !matches!(keyword, Keyword::Draid(_)) {
            return Err(invalid(format_args!("{word} is not dRAID and cannot have failure domains")));
        }
        if groups != 0 && domains != 0 {
            return Err(invalid(format_args!(
                "{word} has mixed configuration of {groups} failure groups and {domains} failure domains, it must have \
                 either fgroups or fdomains, not both"
            )));
        }
        let kind = if groups != 0 { "group" } else { "domain" };
        if groups == 1 || domains == 1 {
            return Err(invalid(format_args!(
                "{word} has only one failure {kind} configured, it must be more than one"
            )));
        }
        if self.before != self.count {
            return Err(invalid(format_args!(
                "{word} has different number of devices in failure {kind} {} than in previous {kind}: {} != {}",
                groups + domains,
                self.count,
                self.before
            )));
        }
        Ok(())
    }

    /// Devices are kept by failure group: where they were named by domain, the first of each domain comes first.
    fn in_order(&self, paths: Vec<String>) -> Vec<String> {
        if self.domains == 0 {
            return paths;
        }
        let each = paths.len() / self.domains as usize;
        let places = (0..each).flat_map(|g| (0..self.domains as usize).map(move |d| g + d * each));
        places.filter_map(|place| paths.get(place).cloned()).collect()
    }
}

impl DraidSpec {
    /// The shape that `word` (`draid2:4d:11c:1s`) gives to `width` devices.
    fn parse(word: &str, nparity: u64, width: u64, domains: &Domains) -> Result<DraidSpec, SpecError> {
        let (mut nspares, mut ndata, mut children) = (0, None, 0);
        for part in word.split(':').skip(1) {
            let end = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
            let (digits, suffix) = part.split_at(end);
            if digits.is_empty() {
                return Err(SpecError(format!("invalid dRAID syntax; expected [:<number><c|d|s>] not '{word}'")));
            }
            let value: Option<u64> = digits.parse().ok();
            match (value, suffix.bytes().next().map(|b| b.to_ascii_lowercase())) {
                (Some(value), Some(b'c')) => {
                    if value == 0 || value > width || !width.is_multiple_of(value) {
                        return Err(SpecError(format!(
                            "invalid number of dRAID disks; multiple of {value} required but {width} provided"
                        )));
                    }
                    children = value;
                }
                (Some(value), Some(b'w')) => {
                    if value != width {
                        return Err(SpecError(format!(
                            "invalid number of dRAID disks; {value} required but {width} provided"
                        )));
                    }
                }
                (Some(value), Some(b'd')) => ndata = Some(value),
                (Some(value), Some(b's')) => nspares = value,
                _ => {
                    return Err(SpecError(format!(
                        "invalid dRAID syntax; expected [:<number><c|d|s|w>], not '{word}'"
                    )));
                }
            }
        }
        if children == 0 {
            children = match (domains.groups, domains.domains) {
                (0, 0) => width,
                (0, domains) => domains,
                (groups, _) => width / groups,
            };
        }
        let failure_groups = width.checked_div(children).unwrap_or(1).max(1);
        domains.match_shape(failure_groups, children)?;
        Self::fill(nparity, ndata, nspares, children, failure_groups)
    }

    /// Finds what was not said, and checks the whole.
    fn fill(
        nparity: u64,
        ndata: Option<u64>,
        nspares: u64,
        nchildren: u64,
        failure_groups: u64,
    ) -> Result<DraidSpec, SpecError> {
        // spares of the failure group that has most of them
        let spares = nspares.div_ceil(failure_groups);
        let room = nchildren.checked_sub(spares).and_then(|left| left.checked_sub(nparity)).unwrap_or(0);
        let ndata = match ndata {
            Some(ndata) => ndata,
            None if room == 0 => {
                return Err(SpecError(format!(
                    "requested number of distributed spares {spares} and parity level {nparity} leaves no disks \
                     available for data"
                )));
            }
            None => room.min(DRAID_DATA_DEFAULT),
        };
        if ndata == 0 || ndata > room {
            return Err(SpecError(format!(
                "requested number of dRAID data disks {ndata} per group is too high,\nat most {room} disks are \
                 available for data"
            )));
        }
        if spares > DRAID_SPARES_MAX || spares > nchildren - (ndata + nparity) {
            return Err(SpecError(format!(
                "invalid number of dRAID spares {nspares}; additional disks would be required"
            )));
        }
        let ngroups = groups(ndata + nparity, nchildren, nspares, failure_groups);
        Ok(DraidSpec { nparity, ndata, nspares, ngroups, nchildren })
    }
}

impl Domains {
    fn match_shape(&self, failure_groups: u64, children: u64) -> Result<(), SpecError> {
        let (groups, domains) = (self.groups, self.domains);
        if failure_groups == 1 && groups + domains != 0 {
            return Err(SpecError("failure domains are not set in dRAID vdev descriptor".to_owned()));
        }
        if groups != 0 && groups != failure_groups {
            return Err(SpecError(format!("invalid number of failure groups {groups}, must be {failure_groups}")));
        }
        if domains != 0 && domains != children {
            return Err(SpecError(format!("invalid number of failure domains {domains}, must be {children}")));
        }
        Ok(())
    }
}

/// The least number of groups that fill whole rows, over all failure groups. Where the spares do not divide evenly, some failure groups
/// have one disk less, and one group less.
fn groups(group_width: u64, children: u64, spares: u64, failure_groups: u64) -> u64 {
    let smaller = spares % failure_groups;
    let most = children - spares / failure_groups;
    let least = if smaller == 0 { most } else { most - 1 };
    let fits = |n: u64| {
        (n * group_width).is_multiple_of(least) && (least == most || ((n + 1) * group_width).is_multiple_of(most))
    };
    let mut each = 1;
    while !fits(each) && each < most * least {
        each += 1;
    }
    if least != most {
        each += 1;
    }
    (each - 1) * smaller + each * (failure_groups - smaller)
}
