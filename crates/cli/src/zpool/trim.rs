//! `zpool initialize` and `zpool trim`: work on the free space of devices. It runs in the background of the open pool. A command that is alone begins it, and with
//! `-w` waits for its end; what is left goes on with the next command that opens the pool for a change. In a server it goes on.
//!
//! OpenZFS: `zpool_do_initialize`, `zpool_do_trim`, `zpool_initialize_impl`, `zpool_trim`.

use std::time::{Duration, Instant};

use base::{Errno, Guid};
use control::{Control, Failed, Ioc};
use nvlist::{NvList, Value};
use pool::{Activity, LeafWork};
use site::{Imported, Query};

use super::vdevs::{NameFlags, Vdevs};
use crate::args::Parsed;
use crate::command::Call;
use crate::console;
use crate::error::{Failure, Outcome, failed, usage};
use crate::progress;
use crate::props::values;
use crate::{messages, pools, writable};

/// The exit status where OpenZFS returns -1.
const MINUS_ONE: u8 = 255;
/// The interval at which the progress is shown.
const SHOW: Duration = Duration::from_secs(1);

/// Commands, by their numbers (OpenZFS: `pool_initialize_func_t`, `pool_trim_func_t`).
const START: u64 = 0;
const CANCEL: u64 = 1;
const SUSPEND: u64 = 2;
const UNINIT: u64 = 3;

/// What is asked for.
struct Asked {
    work: LeafWork,
    command: u64,
    /// The pattern that free space is overwritten with.
    value: Option<u64>,
    rate: u64,
    secure: bool,
    waits: bool,
}

pub(super) fn initialize(call: &Call<'_>) -> Outcome {
    let args = &call.args;
    let command = command(args, &[('c', CANCEL), ('s', SUSPEND), ('u', UNINIT)], &[])?;
    let value = args.has('z').then_some(0);
    let asked = Asked { work: LeafWork::Initialize, command, value, rate: 0, secure: false, waits: args.has('w') };
    if args.has('a') && !args.operands.is_empty() {
        return Err(usage("-a cannot be combined with individual pools or vdevs"));
    }
    check_named(args)?;
    if asked.waits && command != START {
        return Err(usage("-w cannot be used with -c, -sor -u"));
    }
    if value.is_some() && command != START {
        return Err(usage("-z cannot be used with -c, -s or -u"));
    }
    asked.run(args)
}

pub(super) fn trim(call: &Call<'_>) -> Outcome {
    let args = &call.args;
    let command = command(args, &[('c', CANCEL), ('s', SUSPEND)], &['d', 'r'])?;
    let rate = match args.text('r') {
        Some(text) => values::number(&text).map_err(|why| usage(format!("invalid value for rate: {why}")))?,
        None => 0,
    };
    let asked = Asked { work: LeafWork::Trim, command, value: None, rate, secure: args.has('d'), waits: args.has('w') };
    check_named(args)?;
    if asked.waits && command != START {
        return Err(usage("-w cannot be used with -c or -s options"));
    }
    if args.has('a') && !args.operands.is_empty() {
        return Err(usage("-a cannot be combined with individual zpools or vdevs"));
    }
    asked.run(args)
}

/// The command that one of `commands` gives; `of_start` are options that do not come after one.
fn command(args: &Parsed, commands: &[(char, u64)], of_start: &[char]) -> Result<u64, Failure> {
    let mut command = START;
    for (option, _) in &args.options {
        if of_start.contains(option) && command != START {
            return Err(usage(format!("-{option} cannot be combined with the -c or -s options")));
        }
        let Some((_, number)) = commands.iter().find(|(letter, _)| letter == option) else { continue };
        if ![START, *number].contains(&command) {
            return Err(usage(format!("-{option} cannot be combined with other options")));
        }
        command = *number;
    }
    Ok(command)
}

fn check_named(args: &Parsed) -> Result<(), Failure> {
    if args.operands.is_empty() && !args.has('a') { Err(usage("missing pool name argument")) } else { Ok(()) }
}

/// A device that is named, or all of a pool.
struct Device {
    name: String,
    guid: Guid,
}

impl Asked {
    fn run(&self, args: &Parsed) -> Outcome {
        let operands = args.names();
        let Some((name, devices)) = operands.split_first() else {
            let (records, mut status) = pools::records(&[])?;
            for record in records {
                status = status.max(self.report(self.pool(&record, &[])));
            }
            return Ok(status);
        };
        let record = match pools::find(name) {
            Ok(record) => record,
            Err(failure) => return Ok(self.report(Err(failure))),
        };
        Ok(self.report(self.pool(&record, devices)))
    }

    /// Prints why something failed. Returns the exit status.
    fn report(&self, done: Result<bool, Failure>) -> u8 {
        match done {
            Ok(true) => 0,
            Ok(false) => MINUS_ONE,
            Err(Failure::Failed(why) | Failure::Usage(why)) => {
                eprintln!("{why}");
                MINUS_ONE
            }
            Err(Failure::Output(_)) => MINUS_ONE,
        }
    }

    fn verb(&self) -> &'static str {
        if self.work == LeafWork::Trim { "trim" } else { "initialize" }
    }

    fn cannot(&self, device: &str, why: &str) {
        eprintln!("cannot {} '{device}': {why}", self.verb());
    }

    /// Does what is asked for with devices of a pool, all of them if none is named. Returns whether it could be done with all.
    fn pool(&self, record: &Imported, names: &[String]) -> Result<bool, Failure> {
        let Some(devices) = self.devices(&pools::query(record)?, names)? else { return Ok(false) };
        let control = console::control(writable::open_as_it_is(record, "operation failed")?);
        let ioc = if self.work == LeafWork::Trim { Ioc::PoolTrim } else { Ioc::PoolInitialize };
        let done = match control.call(ioc, &record.name, &self.request(&devices)) {
            Ok(_) => true,
            Err(refused) => !self.tell_refused(&refused, &devices, names.is_empty())?,
        };
        if done && self.waits {
            self.wait(&control, &devices)?;
        }
        writable::close(control.spa(), "operation failed")?;
        Ok(done)
    }

    /// The devices of these names. `None` if some are none, which is told then (OpenZFS: `zpool_translate_vdev_guids`).
    fn devices(&self, query: &Query, names: &[String]) -> Result<Option<Vec<Device>>, Failure> {
        let all = Vdevs::ask(query)?;
        if names.is_empty() {
            let leaves = all.root.leaves().into_iter().filter(|leaf| !leaf.is_hidden());
            let device =
                |leaf: &super::vdevs::Vdev| Device { name: leaf.name(query.name(), NameFlags::PATHS), guid: leaf.guid };
            return Ok(Some(leaves.map(device).collect()));
        }
        let (mut devices, mut whole) = (Vec::new(), true);
        for name in names {
            let why = match Vdevs::find(query, name)? {
                Some((vdev, false)) => {
                    devices.push(Device { name: name.clone(), guid: vdev.guid });
                    continue;
                }
                Some((vdev, true)) if all.spares.iter().any(|spare| spare.guid == vdev.guid) => {
                    "device is reserved as a hot spare"
                }
                Some(_) => "device is in use as a cache",
                None => "no such device in pool",
            };
            self.cannot(name, why);
            whole = false;
        }
        Ok(whole.then_some(devices))
    }

    fn request(&self, devices: &[Device]) -> NvList {
        let mut guids = NvList::new();
        devices.iter().for_each(|device| guids.insert(&device.name, device.guid.0));
        let mut input = NvList::new();
        if self.work == LeafWork::Trim {
            input.insert("trim_command", self.command);
            input.insert("trim_vdevs", guids);
            input.insert("trim_rate", self.rate);
            input.insert("trim_secure", self.secure);
        } else {
            input.insert("initialize_command", self.command);
            input.insert("initialize_vdevs", guids);
            if let Some(value) = self.value {
                input.insert("initialize_value", value);
            }
        }
        input
    }

    /// Tells of the devices that were refused. Returns whether there was anything to tell: of `whole` pools those that cannot be trimmed are passed over.
    fn tell_refused(&self, refused: &Failed, devices: &[Device], whole: bool) -> Result<bool, Failure> {
        let key = if self.work == LeafWork::Trim { "trim_vdevs" } else { "initialize_vdevs" };
        let Some(errors) = refused.out.get_nvlist(key) else {
            return Err(failed(format!("operation failed: {}", messages::why_failed(refused))));
        };
        let (mut told, mut passed) = (false, 0);
        for (guid, errno) in errors {
            let number = if let Value::Int64(number) = errno { i32::try_from(*number).ok() } else { None };
            let errno = number.map(Errno::from_raw);
            if errno == Some(Errno::ENOTSUP) && whole && !self.secure {
                passed += 1;
                continue;
            }
            let device = devices.iter().find(|device| device.guid.0.to_string() == guid);
            self.cannot(device.map_or(guid, |device| &device.name), &self.why(errno));
            told = true;
        }
        if passed == devices.len() {
            eprintln!("cannot trim: no devices in pool support trim operations");
            told = true;
        }
        Ok(told)
    }

    /// OpenZFS: `xlate_init_err`, `xlate_trim_err`.
    fn why(&self, errno: Option<Errno>) -> String {
        let (busy, idle) = match self.work {
            LeafWork::Initialize => ("currently initializing", "there is no active initialization"),
            LeafWork::Trim => ("currently trimming", "there is no active trim"),
        };
        match errno {
            Some(Errno::ENODEV) => "no such device in pool".to_owned(),
            Some(Errno::EINVAL | Errno::EROFS) => "invalid device".to_owned(),
            Some(Errno::EBUSY) => busy.to_owned(),
            Some(Errno::ESRCH) => idle.to_owned(),
            Some(Errno::ENOTSUP) => "trim operations are not supported by this device".to_owned(),
            Some(other) => other.to_string(),
            None => "unknown error".to_owned(),
        }
    }

    /// Waits for the end of the work on each device, and shows its progress on a terminal.
    fn wait(&self, control: &Control, devices: &[Device]) -> Result<(), Failure> {
        let (spa, cancel) = (control.spa(), console::signals().cancel());
        let guids: Vec<Guid> = devices.iter().map(|device| device.guid).collect();
        let figures = || spa.view().and_then(|view| view.leaves_progress(self.work, &guids)).unwrap_or_default();
        let bar = progress::bar(figures().total, false);
        let next = std::cell::Cell::new(Instant::now());
        let goes_on = || {
            if !bar.is_hidden() && Instant::now() >= next.get() {
                bar.set_position(figures().done);
                next.set(Instant::now() + SHOW);
            }
            !cancel.is_cancelled()
        };
        let activity = if self.work == LeafWork::Trim { Activity::Trim } else { Activity::Initialize };
        for device in devices {
            let waiting = match self.work {
                LeafWork::Trim => format!("error waiting to trim '{}'", device.name),
                LeafWork::Initialize => format!("error waiting for '{}' to initialize", device.name),
            };
            let waited = spa.wait_leaf_while(activity, device.guid, &goes_on);
            waited.map_err(|e| failed(format!("{waiting}: {}", messages::why(&e))))?;
            if cancel.is_cancelled() {
                return Err(failed(format!("{waiting}: interrupted; it goes on when the pool is next open")));
            }
        }
        bar.finish_and_clear();
        Ok(())
    }
}
