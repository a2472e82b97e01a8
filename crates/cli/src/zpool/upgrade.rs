//! `zpool upgrade`.

use control::Ioc;
use control::stats::FEATURE_STATS;
use nvlist::NvList;
use ondisk::label::key;
use pool::feature::{FEATURES, Feature};
use site::Imported;

use super::vdevs::whole_stats;
use crate::command::Call;
use crate::console::here;
use crate::error::{Failure, Outcome, failed, usage};
use crate::props::compat::Compat;
use crate::props::pool::{LATER, VERSION_BEFORE};
use crate::{pools, writable};

/// The version of pools with features.
const VERSION_FEATURES: u64 = 5000;

/// The description of each version before features.
const VERSIONS: [&str; VERSION_BEFORE as usize] = [
    "Initial ZFS version",
    "Ditto blocks (replicated metadata)",
    "Hot spares and double parity RAID-Z",
    "zpool history",
    "Compression using the gzip algorithm",
    "bootfs pool property",
    "Separate intent log devices",
    "Delegated administration",
    "refquota and refreservation properties",
    "Cache devices",
    "Improved scrub performance",
    "Snapshot properties",
    "snapused property",
    "passthrough-x aclinherit",
    "user/group space accounting",
    "stmf property support",
    "Triple-parity RAID-Z",
    "Snapshot user holds",
    "Log device removal",
    "Compression using zle (zero-length encoding)",
    "Deduplication",
    "Received properties",
    "Slim ZIL",
    "System attributes",
    "Improved scrub stats",
    "Improved snapshot deletion performance",
    "Improved snapshot creation performance",
    "Multiple vdev replacements",
];

pub(super) fn run(call: &Call<'_>) -> Outcome {
    let names = call.args.names();
    let (all, show) = (call.args.has('a'), call.args.has('v'));
    let said = call.args.text('V').map(|version| parse_version(&version)).transpose()?;
    if said.is_some() && !all && names.is_empty() {
        return Err(usage("-V option is incompatible with other arguments"));
    }
    let version = said.unwrap_or(VERSION_FEATURES);
    if show && (all || !names.is_empty()) {
        return Err(usage("-v option is incompatible with other arguments"));
    }
    if all && !names.is_empty() {
        return Err(usage("-a option should not be used along with a pool name"));
    }
    print!("This system supports ZFS pool feature flags.\n\n");
    if show {
        print!("{}", versions());
        return Ok(0);
    }
    if all {
        return upgrade_all(version);
    }
    if names.is_empty() {
        return list();
    }
    Ok(pools::for_each_record(&names, |record| upgrade_one(record, version))?.0)
}

fn parse_version(text: &str) -> Result<u64, Failure> {
    let version = text.parse::<u64>().ok().filter(|n| matches!(*n, 1..=VERSION_BEFORE | VERSION_FEATURES));
    version.ok_or_else(|| usage(format!("invalid version '{text}'")))
}

fn versions() -> String {
    let mut text = "The following features are supported:\n\nFEAT DESCRIPTION\n".to_owned();
    text += &format!("{}\n", "-".repeat(61));
    for def in FEATURES.iter().filter(|def| !LATER.contains(&def.name)) {
        let compatible = if def.readonly_compatible() { " (read-only compatible)" } else { "" };
        text += &format!("{:<37}{compatible}\n     {}\n", def.name, def.description);
    }
    text += "\nThe following legacy versions are also supported:\n\nVER  DESCRIPTION\n";
    text += &format!("---  {}\n", "-".repeat(56));
    for (n, what) in (1..).zip(VERSIONS) {
        text += &format!(" {n:<3} {what}\n");
    }
    text + "\nFor more information on a particular version, including supported releases,\n\
            see the ZFS Administration Guide.\n\n"
}

/// The features that are disabled in the pool with this configuration.
fn disabled(config: &NvList) -> impl Iterator<Item = &'static Feature> {
    let enabled = config.get_nvlist(FEATURE_STATS);
    let off = move |def: &&Feature| !enabled.is_some_and(|enabled| enabled.contains(def.guid));
    FEATURES.iter().filter(off).filter(|def| !LATER.contains(&def.name))
}

fn version_of(config: &NvList) -> u64 {
    config.get_u64(key::VERSION).unwrap_or(0)
}

fn name_of(config: &NvList) -> &str {
    config.get_str(key::POOL_NAME).unwrap_or_default()
}

/// The disabled features that an upgrade enables.
fn missing(config: &NvList) -> Result<Vec<&'static str>, Failure> {
    let compat = Compat::load_and_tell(config.get_str(key::COMPATIBILITY).unwrap_or("off")).map_err(failed)?;
    Ok(disabled(config).filter(|def| !def.not_by_upgrade() && compat.allows(def)).map(|def| def.name).collect())
}

/// Upgrades a pool that was named, or prints that there is nothing to do.
fn upgrade_one(record: &Imported, version: u64) -> Result<(), Failure> {
    let name = &record.name;
    if name == "log" {
        return Err(failed(
            "'log' is now a reserved word\nPool 'log' must be renamed using export and import to upgrade.",
        ));
    }
    let old = version_of(&whole_stats(&pools::query(record)?)?);
    if old > version {
        println!("Pool '{name}' is already formatted using more current version '{old}'.\n");
    } else if old == version && version != VERSION_FEATURES {
        println!("Pool '{name}' is already formatted using version {version}.\n");
    } else if !upgrade(record, version)? {
        println!("Pool '{name}' already has all supported and requested features enabled.");
    }
    Ok(())
}

/// Brings a pool to `version`, and if that has features enables those that can be; returns whether anything changed.
fn upgrade(record: &Imported, version: u64) -> Result<bool, Failure> {
    let config = whole_stats(&pools::query(record)?)?;
    let old = version_of(&config);
    if old < version && config.get_str(key::COMPATIBILITY) == Some("legacy") {
        return Err(failed("Upgrade not performed because 'compatibility' property set to 'legacy'."));
    }
    let wanted = if version >= VERSION_FEATURES { missing(&config)? } else { Vec::new() };
    if wanted.is_empty() && old >= version {
        return Ok(false);
    }
    let doing = format!("cannot set property for '{}'", record.name);
    let mut input = NvList::new();
    input.insert("version", version);
    if !wanted.is_empty() {
        let mut props = NvList::new();
        wanted.iter().for_each(|name| props.insert(format!("feature@{name}"), 0u64));
        input.insert("props", props);
    }
    writable::request(record, &doing, Ioc::PoolUpgrade, &input)?;
    if old < version {
        let now = if version >= VERSION_FEATURES { "feature flags".to_owned() } else { format!("version {version}") };
        println!("Successfully upgraded '{}' from version {old} to {now}.", record.name);
    }
    if !wanted.is_empty() {
        println!("Enabled the following features on '{}':", record.name);
        wanted.iter().for_each(|name| println!("  {name}"));
    }
    println!();
    Ok(true)
}

fn upgrade_all(version: u64) -> Outcome {
    let mut any = false;
    let (status, _) = pools::for_each_record(&[], |record| {
        any |= upgrade(record, version)?;
        Ok(())
    })?;
    if status == 0 && !any {
        if version >= VERSION_FEATURES {
            print!(
                "All pools are already formatted using feature flags.\n\n\
                 Every feature flags pool already has all supported and requested features enabled.\n"
            );
        } else {
            println!("All pools are already formatted with version {version} or higher.");
        }
    }
    Ok(status)
}

/// Lists the pools that could be upgraded.
fn list() -> Outcome {
    let mut all: Vec<NvList> = Vec::new();
    for record in here().all()? {
        all.push(whole_stats(&pools::query(&record)?)?);
    }
    let (old, new): (Vec<_>, Vec<_>) = all.into_iter().partition(|config| version_of(config) < VERSION_FEATURES);
    if old.is_empty() {
        print!("All pools are formatted using feature flags.\n\n");
    } else {
        print!(
            "The following pools are formatted with legacy version numbers and can\n\
             be upgraded to use feature flags.  After being upgraded, these pools\n\
             will no longer be accessible by software that does not support feature\n\
             flags.\n\n\
             Note that setting a pool's 'compatibility' feature to 'legacy' will\n\
             inhibit upgrades.\n\nVER  POOL\n---  ------------\n"
        );
        old.iter().for_each(|config| println!("{:2}   {}", version_of(config), name_of(config)));
        print!("\nUse 'zpool upgrade -v' for a list of available legacy versions.\n");
    }
    print_disabled(&new);
    Ok(0)
}

fn print_disabled(pools: &[NvList]) {
    let off = |config: &NvList| -> Vec<String> {
        disabled(config)
            .map(|def| format!("      {}{}", def.name, if def.not_by_upgrade() { "(*)" } else { "" }))
            .collect()
    };
    let lacking: Vec<(&NvList, Vec<String>)> =
        pools.iter().map(|config| (config, off(config))).filter(|(_, off)| !off.is_empty()).collect();
    if lacking.is_empty() {
        println!("Every feature flags pool has all supported and requested features enabled.");
        return;
    }
    print!(
        "\nSome supported features are not enabled on the following pools. Once a\n\
         feature is enabled the pool may become incompatible with software\n\
         that does not support the feature. See zpool-features(7) for details.\n\n\
         Note that the pool 'compatibility' feature can be used to inhibit\n\
         feature upgrades.\n\n\
         Features marked with (*) are not applied automatically on upgrade, and\n\
         must be applied explicitly with zpool-set(7).\n\nPOOL  FEATURE\n---------------\n"
    );
    for (config, lines) in lacking {
        println!("{}", name_of(config));
        lines.iter().for_each(|line| println!("{line}"));
    }
    println!();
}
