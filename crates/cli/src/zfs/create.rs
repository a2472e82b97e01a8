//! `zfs create`.

use control::Ioc;
use nvlist::NvList;
use pool::Kind;

use super::ancestors::{self, Ancestors};
use super::listed::Listed;
use super::mounting;
use super::new_dataset::{OST_ZFS, OST_ZVOL, refused, request};
use super::select;
use super::session::Session;
use super::volume;
use crate::args::Parsed;
use crate::command::Call;
use crate::error::{Failure, Outcome, failed, usage};
use crate::keys;
use crate::names::{self, Types};
use crate::pools;
use crate::props::valid::{Target, add_said, valid};
use crate::props::{Said, values};

/// The version of new file systems (OpenZFS: `ZPL_VERSION`).
const VERSION: u64 = 5;

/// The options of the command.
struct Options {
    kind: Kind,
    props: Vec<Said>,
    volsize: u64,
    reserve: bool,
    ancestors: Ancestors,
    /// Not `-u`: it is mounted.
    mount: bool,
    dry_run: bool,
    verbose: bool,
    parsable: bool,
}

pub(super) fn run(call: &Call<'_>) -> Outcome {
    let options = options(&call.args)?;
    let operands = call.args.names();
    let name = match operands.as_slice() {
        [] => return Err(usage(format!("missing {} argument", options.kind.as_str()))),
        [name] => name,
        _ => return Err(usage("too many arguments")),
    };
    Session::run(|session| create(session, name, options))
}

fn options(args: &Parsed) -> Result<Options, Failure> {
    let kind = if args.has('V') { Kind::Volume } else { Kind::Filesystem };
    let mut props: Vec<Said> = Vec::new();
    let mut volsize = 0;
    for (option, value) in &args.options {
        let value = value.to_string_lossy();
        match option {
            'V' => {
                volsize = size(&value, "size")?;
                put(&mut props, "volsize", volsize);
            }
            'b' => put(&mut props, "volblocksize", size(&value, "block size")?),
            'o' => add_said(&mut props, &value).map_err(failed)?,
            _ => {}
        }
    }
    if kind != Kind::Volume && (args.has('b') || args.has('s')) {
        return Err(usage("'-s' and '-b' can only be used when creating a volume"));
    }
    if kind == Kind::Volume && args.has('u') {
        return Err(usage("'-u' can only be used when creating a filesystem"));
    }
    Ok(Options {
        kind,
        props,
        volsize,
        reserve: !args.has('s'),
        ancestors: Ancestors::of(args.count('p')),
        mount: kind != Kind::Volume && !args.has('u'),
        dry_run: args.has('n'),
        verbose: args.has('v') || args.has('P'),
        parsable: args.has('P'),
    })
}

fn size(text: &str, what: &str) -> Result<u64, Failure> {
    values::number(text).map_err(|why| failed(format!("bad volume {what} '{text}': {why}")))
}

/// Sets a numeric property, as the last of the list.
fn put(props: &mut Vec<Said>, name: &str, value: u64) {
    props.retain(|(n, _)| n != name);
    props.push((name.to_owned(), value.to_string()));
}

fn create(session: &Session, name: &str, mut options: Options) -> Outcome {
    if options.dry_run || options.kind == Kind::Volume {
        prepare(session, name, &mut options)?;
    }
    let types = if options.kind == Kind::Volume { Types::VOLUMES } else { Types::FILESYSTEMS };
    if let Ancestors::Made { unmountable } = options.ancestors
        && names::check_new(name, types).is_ok()
    {
        if session.reach(name)?.is_some() && ancestors::exists(name)? {
            return Ok(0);
        }
        if options.verbose {
            match (options.parsable, options.dry_run) {
                (true, _) => println!("create_ancestors\t{name}"),
                (false, true) => println!("would create ancestors of {name}"),
                (false, false) => println!("create ancestors of {name}"),
            }
        }
        if !options.dry_run {
            ancestors::make(session, name, unmountable)?;
        }
    }
    if options.verbose {
        tell(name, &options);
    }
    if options.dry_run {
        return Ok(0);
    }
    ancestors::check_new(session, name)?;
    let doing = format!("cannot create '{name}'");
    let mut props = check_props(name, &options, &doing)?;
    if let Some(version) = props.get_u64("version").filter(|version| *version != VERSION) {
        return Err(failed(format!(
            "{doing}: file systems of version {version} are read by this version of Zuse, and not made"
        )));
    }
    let key = keys::for_new(name, &mut props).map_err(|why| failed(format!("{doing}: {why}")))?;
    let ost = if options.kind == Kind::Volume { OST_ZVOL } else { OST_ZFS };
    let input = request(ost, props, key.as_ref());
    session.requests(name)?.call(Ioc::Create, name, &input).map_err(|e| refused(name, options.kind, &e))?;
    keys::remember_new(name, key.as_ref(), &input)?;
    if options.mount {
        mounting::mount_new(session, name)?;
    }
    Ok(0)
}

/// Checks the properties before anything is created; makes the size and reservation of a volume exact, and prints what
/// is to be known about it.
fn prepare(session: &Session, name: &str, options: &mut Options) -> Result<(), Failure> {
    let pool = name.split('/').next().unwrap_or("");
    let record = pools::find(pool)?;
    session.reach(name)?;
    let tops = volume::Tops::of(&pools::query(&record)?);
    let doing = if options.dry_run { format!("cannot verify '{name}'") } else { format!("cannot create '{name}'") };
    let props = check_props(name, options, &doing)?;
    if options.kind != Kind::Volume {
        return Ok(());
    }
    let tops = tops.map_err(|e| failed(format!("{doing}: {e}")))?;
    let block = tops.block_size(props.get_u64("volblocksize"));
    if block != volume::BLOCK_SIZE {
        put(&mut options.props, "volblocksize", block);
    }
    if !options.volsize.is_multiple_of(block) {
        options.volsize = options.volsize.checked_next_multiple_of(block).unwrap_or(options.volsize);
        put(&mut options.props, "volsize", options.volsize);
    }
    if options.reserve && !options.props.iter().any(|(name, _)| name == "refreservation") {
        put(&mut options.props, "refreservation", tops.reservation(options.volsize, block));
    }
    Ok(())
}

fn check_props(name: &str, options: &Options, doing: &str) -> Result<NvList, Failure> {
    let source = pools::of_dataset(name)?;
    let large_blocks = source.as_deref().map(|source| pools::has_feature(source, "large_blocks")).transpose();
    let large_blocks = large_blocks.map_err(|e| failed(format!("{doing}: {e}")))?.unwrap_or(false);
    let parent = source.zip(name.rsplit_once('/'));
    let zoned =
        parent.is_some_and(|(source, (parent, _))| select::is_zoned(&Listed::named(&source, parent.to_owned())));
    let target = Target { kind: options.kind, existing: None, large_blocks, zoned, key_params: true };
    let props = valid(&options.props, &target).map_err(|why| failed(format!("{doing}: {why}")))?;
    if options.kind == Kind::Volume && props.get_u64("volsize") == Some(0) && !options.dry_run {
        return Err(failed(format!("{doing}: volume size cannot be zero")));
    }
    Ok(props)
}

fn tell(name: &str, options: &Options) {
    match (options.parsable, options.dry_run) {
        (true, _) => println!("create\t{name}"),
        (false, true) => println!("would create {name}"),
        (false, false) => println!("create {name}"),
    }
    for (name, value) in &options.props {
        match options.parsable {
            true => println!("property\t{name}\t{value}"),
            false => println!("\t{name}={value}"),
        }
    }
}
