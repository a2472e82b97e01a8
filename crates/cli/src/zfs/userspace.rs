//! `zfs userspace`, `groupspace` and `projectspace`.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::io::{self, Write};

use control::Ioc;
use nvlist::{NvList, Value};
use pool::prop::{nicebytes, nicenum};

use super::listed::{Listed, Wanted};
use super::select::{by_path, find, told};
use crate::command::Call;
use crate::error::{Failure, Outcome, failed, usage};
use crate::names::Types;
use crate::pools::stdout;
use crate::users::{self, Who};

/// The kind of owner. The order is that of the column TYPE.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
enum Owner {
    PosixGroup,
    PosixUser,
    SmbGroup,
    SmbUser,
    Project,
}

impl Owner {
    const fn title(self) -> &'static str {
        match self {
            Owner::PosixGroup => "POSIX Group",
            Owner::PosixUser => "POSIX User",
            Owner::SmbGroup => "SMB Group",
            Owner::SmbUser => "SMB User",
            Owner::Project => "Project",
        }
    }
}

/// A column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Field {
    Type,
    Name,
    Used,
    Quota,
    ObjUsed,
    ObjQuota,
}

const FIELDS: [(Field, &str); 6] = [
    (Field::Type, "type"),
    (Field::Name, "name"),
    (Field::Used, "used"),
    (Field::Quota, "quota"),
    (Field::ObjUsed, "objused"),
    (Field::ObjQuota, "objquota"),
];

impl Field {
    fn parse(word: &str) -> Option<Field> {
        FIELDS.iter().find(|(_, name)| *name == word).map(|(field, _)| *field)
    }

    fn title(self) -> String {
        FIELDS.iter().find(|(field, _)| *field == self).map_or(String::new(), |(_, name)| name.to_ascii_uppercase())
    }
}

/// The name of an owner: names sort before numbers, and by their letters.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
enum Name {
    Text(String),
    Id(u64),
}

/// One line.
#[derive(Clone, Debug)]
struct Row {
    owner: Owner,
    name: Name,
    used: Option<u64>,
    quota: Option<u64>,
    obj_used: Option<u64>,
    obj_quota: Option<u64>,
}

/// The options of the command.
struct Options {
    fields: Vec<Field>,
    owners: Vec<Owner>,
    sort: Vec<(Field, bool)>,
    scripted: bool,
    parsable: bool,
    numeric: bool,
}

pub(super) fn run(call: &Call<'_>) -> Outcome {
    let options = match options(call) {
        Ok(options) => options,
        // OpenZFS returns -1 here
        Err(Failure::Failed(why)) => {
            eprintln!("{why}");
            return Ok(255);
        }
        Err(other) => return Err(other),
    };
    let names = call.args.names();
    let name = match names.as_slice() {
        [] => return Err(usage("missing dataset name")),
        [name] => name,
        _ => return Err(usage("too many arguments")),
    };
    let name = &*by_path(name)?;
    let dataset = find(name, Types { filesystems: true, snapshots: true, ..Types::NONE })?;
    if let Some((head, _)) = name.split_once('@') {
        let head = Listed::ask(dataset.source(), head, &Wanted::default()).map_err(|e| failed(told(&e, name)))?;
        if !head.fits(Types::FILESYSTEMS) {
            return Err(failed("operation is only applicable to filesystems and their snapshots"));
        }
    }
    let mut rows = collect(&dataset, &options)?;
    rows.sort_by(|a, b| order(a, b, &options.sort));
    if !rows.is_empty() {
        let mut out = stdout();
        print(&mut out, &rows, &options)?;
        out.flush()?;
    }
    Ok(0)
}

fn options(call: &Call<'_>) -> Result<Options, Failure> {
    let project = call.command.name == "projectspace";
    let mut owners = match call.command.name {
        "groupspace" => vec![Owner::PosixGroup, Owner::SmbGroup],
        "projectspace" => vec![Owner::Project],
        _ => vec![Owner::PosixUser, Owner::SmbUser],
    };
    let mut fields = FIELDS.map(|(field, _)| field).to_vec();
    let mut sort = Vec::new();
    for (option, value) in &call.args.options {
        let text = value.to_string_lossy();
        match option {
            'n' | 't' | 'i' if project => return Err(usage(format!("invalid option '{option}'"))),
            'o' => {
                let field =
                    |w: &str| Field::parse(w).ok_or_else(|| failed(format!("invalid type '{w}' for -o option")));
                fields = text.split(',').map(field).collect::<Result<_, _>>()?;
            }
            's' | 'S' => {
                // any property is accepted, and those that are not columns do not sort
                if crate::columns::column(&text, crate::columns::Of::Dataset).is_none() {
                    return Err(usage(format!("invalid field '{text}'")));
                }
                let field = Field::parse(&text).filter(|f| !matches!(f, Field::ObjUsed | Field::ObjQuota));
                sort.extend(field.map(|field| (field, *option == 'S')));
            }
            't' => owners = types(&text)?,
            _ => {}
        }
    }
    Ok(Options {
        fields,
        owners,
        sort,
        scripted: call.args.has('H'),
        parsable: call.args.has('p'),
        numeric: call.args.has('n') || project,
    })
}

fn types(words: &str) -> Result<Vec<Owner>, Failure> {
    let mut owners = Vec::new();
    for word in words.split(',') {
        match word {
            "posixuser" => owners.push(Owner::PosixUser),
            "posixgroup" => owners.push(Owner::PosixGroup),
            "smbuser" => owners.push(Owner::SmbUser),
            "smbgroup" => owners.push(Owner::SmbGroup),
            "all" => owners.extend([Owner::PosixUser, Owner::PosixGroup, Owner::SmbUser, Owner::SmbGroup]),
            _ => return Err(failed(format!("invalid type '{word}' for -t option"))),
        }
    }
    Ok(owners)
}

/// The sources that are read, in the order of OpenZFS's `zfs_userquota_prop_t`: the figure, and whose it is.
const SOURCES: [(Field, &str); 12] = [
    (Field::Used, "user"),
    (Field::Quota, "user"),
    (Field::Used, "group"),
    (Field::Quota, "group"),
    (Field::ObjUsed, "user"),
    (Field::ObjQuota, "user"),
    (Field::ObjUsed, "group"),
    (Field::ObjQuota, "group"),
    (Field::Used, "project"),
    (Field::Quota, "project"),
    (Field::ObjUsed, "project"),
    (Field::ObjQuota, "project"),
];

fn collect(dataset: &Listed, options: &Options) -> Result<Vec<Row>, Failure> {
    let mut rows: HashMap<(Owner, Name), Row> = HashMap::new();
    for (number, (field, whose)) in (0u64..).zip(SOURCES) {
        let wanted = options.owners.iter().any(|owner| whose_of(*owner) == whose);
        if !wanted {
            continue;
        }
        let mut input = NvList::new();
        input.insert("type", number);
        let answer = dataset.source().call(Ioc::UserspaceMany, dataset.name(), &input);
        let answer = answer.map_err(|e| failed(told(&e, dataset.name())))?;
        let default_quota = answer.get_u64("default_quota").unwrap_or(0);
        for (domain, rid, amount) in accounts(&answer) {
            let (owner, name) = identify(domain, rid, whose, options.numeric);
            if !options.owners.contains(&owner) {
                continue;
            }
            let row = rows.entry((owner, name.clone())).or_insert(Row {
                owner,
                name,
                used: None,
                quota: None,
                obj_used: None,
                obj_quota: None,
            });
            match field {
                Field::Used => {
                    row.used = Some(amount);
                    row.quota.get_or_insert(default_quota);
                }
                Field::Quota => {
                    row.quota = Some(amount);
                    row.used.get_or_insert(0);
                }
                Field::ObjUsed => {
                    row.obj_used = Some(amount);
                    row.obj_quota.get_or_insert(default_quota);
                }
                Field::ObjQuota => {
                    row.obj_quota = Some(amount);
                    row.obj_used.get_or_insert(0);
                }
                Field::Type | Field::Name => {}
            }
        }
    }
    Ok(rows.into_values().collect())
}

/// The domain, the number and the figure of each in an answer.
fn accounts(answer: &NvList) -> impl Iterator<Item = (&str, u64, u64)> {
    let domains = match answer.get("domains") {
        Some(Value::StringArray(domains)) => domains.as_slice(),
        _ => &[],
    };
    let numbers = |key: &str| answer.get_u64_array(key).unwrap_or(&[]).iter().copied();
    let domains = domains.iter().map(|domain| domain.to_str().unwrap_or(""));
    domains.zip(numbers("rids")).zip(numbers("space")).map(|((domain, rid), amount)| (domain, rid, amount))
}

const fn whose_of(owner: Owner) -> &'static str {
    match owner {
        Owner::PosixUser | Owner::SmbUser => "user",
        Owner::PosixGroup | Owner::SmbGroup => "group",
        Owner::Project => "project",
    }
}

fn identify(domain: &str, rid: u64, whose: &str, numeric: bool) -> (Owner, Name) {
    let user = whose == "user";
    if !domain.is_empty() {
        let owner = if user { Owner::SmbUser } else { Owner::SmbGroup };
        return (owner, Name::Text(format!("{domain}-{rid}")));
    }
    let (owner, who) = match whose {
        "user" => (Owner::PosixUser, Who::User),
        "group" => (Owner::PosixGroup, Who::Group),
        _ => return (Owner::Project, Name::Id(rid)),
    };
    let name = if numeric { None } else { users::name_of(who, rid) };
    (owner, name.map_or(Name::Id(rid), |name| Name::Text(name.to_owned())))
}

fn order(a: &Row, b: &Row, sort: &[(Field, bool)]) -> Ordering {
    let by = |field: Field| match field {
        Field::Type => a.owner.cmp(&b.owner),
        Field::Name => a.name.cmp(&b.name),
        Field::Used => a.used.unwrap_or(0).cmp(&b.used.unwrap_or(0)),
        Field::Quota => a.quota.unwrap_or(0).cmp(&b.quota.unwrap_or(0)),
        Field::ObjUsed | Field::ObjQuota => Ordering::Equal,
    };
    let chosen = sort.iter().map(|(field, reverse)| if *reverse { by(*field).reverse() } else { by(*field) });
    chosen.chain([by(Field::Type), by(Field::Name)]).find(|o| o.is_ne()).unwrap_or(Ordering::Equal)
}

fn text(row: &Row, field: Field, parsable: bool) -> String {
    let amount = |n: Option<u64>, is_quota: bool, nice: fn(u64) -> String| match n {
        None => "-".to_owned(),
        Some(n) if parsable => n.to_string(),
        Some(0) if is_quota => "none".to_owned(),
        Some(n) => nice(n),
    };
    match field {
        Field::Type => row.owner.title().to_owned(),
        Field::Name => match &row.name {
            Name::Text(name) => name.clone(),
            Name::Id(id) => id.to_string(),
        },
        Field::Used => amount(row.used, false, nicebytes),
        Field::Quota => amount(row.quota, true, nicebytes),
        Field::ObjUsed => amount(row.obj_used, false, nicenum),
        Field::ObjQuota => amount(row.obj_quota, true, nicenum),
    }
}

fn print(out: &mut impl Write, rows: &[Row], options: &Options) -> io::Result<()> {
    let lines: Vec<Vec<String>> =
        rows.iter().map(|row| options.fields.iter().map(|f| text(row, *f, options.parsable)).collect()).collect();
    if options.scripted {
        return lines.iter().try_for_each(|line| writeln!(out, "{}", line.join("\t")));
    }
    let titles: Vec<String> = options.fields.iter().map(|f| f.title()).collect();
    let widths: Vec<usize> = (0..titles.len())
        .map(|n| lines.iter().chain([&titles]).filter_map(|line| line.get(n)).map(String::len).max().unwrap_or(0))
        .collect();
    for line in [&titles].into_iter().chain(&lines) {
        let cell = |((text, field), width): ((&String, &Field), &usize)| match field {
            Field::Type | Field::Name => format!("{text:<width$}"),
            _ => format!("{text:>width$}"),
        };
        let cells: Vec<String> = line.iter().zip(&options.fields).zip(&widths).map(cell).collect();
        writeln!(out, "{}", cells.join("  "))?;
    }
    Ok(())
}
