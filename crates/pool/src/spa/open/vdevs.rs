//! Vdev state in the MOS beyond the configuration: mappings of removed vdevs, DTLs, classes.

use base::{Endian, ObjectId, Txg};
use ondisk::indirect::{IndirectMapping, MAPPING_ENTRY_SIZE, MappingPhys};
use space::MapGeometry;
use vdev::VdevTree;
use zio::Zio;

use crate::Error;
use crate::spa::metaslab::spacemap::SpaceMap;
use crate::spa::mos::Mos;

/// The most entries of a mapping that are accepted: 24 bytes each.
const MAPPING_ENTRIES_MAX: u64 = 1 << 26;

/// The purpose that a top-level vdev is reserved for (OpenZFS: `vdev_alloc_bias_t`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AllocBias {
    /// Any block.
    #[default]
    None,
    /// Intent logs.
    Log,
    /// Metadata and small blocks.
    Special,
    /// Dedup tables.
    Dedup,
}

/// Loads the mappings of all removed vdevs, the last removed first: the mapping of an older one may lie on a newer one.
pub(super) fn load_mappings(mos: &Mos, zio: &Zio) -> Result<(), Error> {
    let tree = zio.tree();
    // {state, vdev being removed, the vdev removed last, …}; the chain continues in the vdevs' configurations
    let removing = mos.directory.lookup("com.delphix:removing")?.map(|v| v.u64s());
    let mut next = removing.and_then(|words| words.get(2).copied());
    for _ in 0..tree.tops().len() {
        let Some(top) = next.and_then(|id| tree.top(id)).filter(|top| top.is_indirect()) else { break };
        load_mapping(mos, &tree, top)?;
        next = top.config().prev_indirect_vdev;
    }
    // vdevs that no chain leads to, as in pools whose record of removals is damaged
    for top in tree.tops().iter().filter(|top| top.is_indirect() && top.mapping().is_none()) {
        load_mapping(mos, &tree, top)?;
    }
    Ok(())
}

fn load_mapping(mos: &Mos, tree: &VdevTree, top: &vdev::TopVdev) -> Result<(), Error> {
    let id = top.config().indirect_object;
    if id.is_none() {
        return Err(Error::corrupt(ObjectId::NONE, format!("removed vdev {} has no mapping", top.id())));
    }
    let object = mos.object(id)?;
    let phys = Mos::bonus(&object, MappingPhys::decode)?;
    let stored = object.most_bytes() / MAPPING_ENTRY_SIZE as u64;
    if phys.num_entries > stored.min(MAPPING_ENTRIES_MAX) {
        return Err(Error::corrupt(id, format!("mapping claims {} entries", phys.num_entries)));
    }
    // entries straddle blocks, and each block has its own order: words are the unit
    let words = object.read_u64s(0, phys.num_entries as usize * 3)?;
    let raw: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    let mapping = IndirectMapping::decode(&raw, phys.num_entries, Endian::Little);
    tree.set_indirect(top.id(), mapping.map_err(|source| Error::Format { object: id, source })?);
    Ok(())
}

/// Loads the DTL of each leaf, for a pool whose last txg is `last`. If a DTL cannot be read, the leaf counts as having missed everything.
pub(super) fn load_dtls(mos: &Mos, zio: &Zio, last: Txg) {
    for leaf in zio.tree().config().leaves().filter(|leaf| leaf.dtl.is_some()) {
        let missed = SpaceMap::open(mos, leaf.dtl).and_then(|map| map.load(MapGeometry::DTL));
        match missed {
            Ok(missed) => zio.tree().set_dtl(leaf.guid, missed.iter().collect()),
            Err(_) => zio.tree().lose_dtl(leaf.guid, last),
        }
    }
}

/// Returns the classes of the top-level vdevs, by index.
pub(crate) fn alloc_biases(mos: &Mos, tree: &VdevTree) -> Result<Vec<AllocBias>, Error> {
    const KEY: &str = "org.zfsonlinux:allocation_bias";
    tree.tops()
        .iter()
        .map(|top| {
            let stored = match top.config().top_zap {
                ObjectId::NONE => None,
                id => mos.zap(id)?.lookup(KEY)?,
            };
            let text = stored.as_ref().and_then(|v| v.str()).or(top.config().alloc_bias.as_deref());
            Ok(match text {
                Some("log") => AllocBias::Log,
                Some("special") => AllocBias::Special,
                Some("dedup") => AllocBias::Dedup,
                _ => AllocBias::None,
            })
        })
        .collect()
}
