//! The configuration of a vdev as a list again, for the MOS and for labels.

use nvlist::{NvList, Value};
use ondisk::label::key;

use crate::VdevType;
use crate::config::VdevConfig;

/// The names of a vdev in the order in which OpenZFS writes them (`vdev_config_generate`); `children` comes last of all.
const ORDER: [&str; 43] = [
    key::TYPE,
    key::ID,
    key::GUID,
    key::PATH,
    key::DEVID,
    key::PHYS_PATH,
    "vdev_enc_sysfs_path",
    "fru",
    key::NPARITY,
    key::RAIDZ_EXPANDING,
    key::RAIDZ_EXPAND_TXGS,
    key::DRAID_NDATA,
    key::DRAID_NSPARES,
    key::DRAID_NGROUPS,
    key::DRAID_NCHILDREN,
    key::TOP_GUID,
    key::SPARE_ID,
    key::WHOLE_DISK,
    key::NOT_PRESENT,
    key::IS_SPARE,
    key::METASLAB_ARRAY,
    key::METASLAB_SHIFT,
    key::ASHIFT,
    key::ASIZE,
    key::MIN_ALLOC,
    key::IS_LOG,
    key::NON_ALLOCATING,
    key::REMOVING,
    key::ALLOCATION_BIAS,
    key::DTL,
    key::INDIRECT_OBJECT,
    key::INDIRECT_BIRTHS,
    key::PREV_INDIRECT_VDEV,
    key::CREATE_TXG,
    key::VDEV_LEAF_ZAP,
    key::VDEV_TOP_ZAP,
    key::VDEV_ROOT_ZAP,
    key::OFFLINE,
    key::RESILVER_TXG,
    key::REBUILD_TXG,
    key::FAULTED,
    key::DEGRADED,
    key::REMOVED,
];

/// The contents of a field.
enum Field<'c> {
    /// A number that is written where the configuration had it, or where it is not 0.
    Number(u64),
    /// A number that is written where it is not 0: an object, a txg, a flag.
    Set(u64),
    /// A text that is written where there is one.
    Text(Option<&'c str>),
    /// Anything else.
    Value(Option<Value>),
}

impl VdevConfig {
    /// The list that says what the fields say, with all below, in OpenZFS's order. Names that no field stands for are taken from
    /// [`VdevConfig::raw`]; so what was read and not changed is the same again.
    #[must_use]
    pub fn to_nvlist(&self) -> NvList {
        let mut list = NvList::new();
        for name in ORDER {
            let was = self.raw.get(name);
            let value = match self.field(name) {
                None => was.cloned(),
                Some(Field::Number(n)) => (n != 0 || was.is_some()).then(|| n.into()),
                Some(Field::Set(n)) => (n != 0).then(|| n.into()),
                Some(Field::Text(text)) => text.map(Value::from),
                Some(Field::Value(value)) => value,
            };
            if let Some(value) = value {
                list.insert(name, value);
            }
        }
        let known = |name: &[u8]| ORDER.iter().chain(&[key::CHILDREN, key::AUX_STATE]).any(|n| n.as_bytes() == name);
        let others = self.raw.iter_bytes().filter(|(name, _)| !known(name));
        // on a leaf, why it is in its state comes at the end
        for (name, value) in others {
            list.insert(name, value.clone());
        }
        if let Some(reason) = &self.aux_state {
            list.insert(key::AUX_STATE, reason.as_str());
        }
        if !self.children.is_empty() || self.raw.contains(key::CHILDREN) {
            list.insert(key::CHILDREN, self.children.iter().map(VdevConfig::to_nvlist).collect::<Vec<_>>());
        }
        list
    }

    fn field(&self, name: &str) -> Option<Field<'_>> {
        use Field::{Number, Set, Text};
        let flag = |on: bool| Set(u64::from(on));
        Some(match name {
            key::TYPE => Text(Some(self.kind.name())),
            key::ID => Number(self.id),
            key::GUID => Number(self.guid.0),
            key::PATH => Text(self.path.as_deref()),
            // raidz from before raidz2 does not say that it has one
            key::NPARITY if self.nparity == 1 && !self.raw.contains(name) => return None,
            key::NPARITY => Number(self.nparity),
            key::RAIDZ_EXPANDING => Field::Value(self.raidz_expanding.then_some(Value::Boolean)),
            key::RAIDZ_EXPAND_TXGS => {
                let txgs: Vec<u64> = self.raidz_expand_txgs.iter().map(|t| t.0).collect();
                Field::Value((!txgs.is_empty()).then(|| txgs.into()))
            }
            key::DRAID_NDATA => Number(self.draid_ndata),
            key::DRAID_NSPARES => Number(self.draid_nspares),
            key::DRAID_NGROUPS => Number(self.draid_ngroups),
            key::DRAID_NCHILDREN => Field::Value(self.draid_nchildren.map(Value::from)),
            key::TOP_GUID if self.kind == VdevType::DraidSpare => Set(self.spare_top_guid.0),
            key::SPARE_ID if self.kind == VdevType::DraidSpare => Number(self.spare_id),
            key::NOT_PRESENT => flag(self.not_present),
            key::METASLAB_ARRAY => Number(self.ms_array.0),
            key::METASLAB_SHIFT => Number(self.ms_shift),
            key::ASHIFT => Number(self.ashift),
            key::ASIZE => Number(self.asize),
            key::IS_LOG => Number(u64::from(self.is_log)),
            key::REMOVING => flag(self.removing),
            key::ALLOCATION_BIAS => Text(self.alloc_bias.as_deref()),
            key::DTL => Set(self.dtl.0),
            key::INDIRECT_OBJECT => Set(self.indirect_object.0),
            key::INDIRECT_BIRTHS => Set(self.indirect_births.0),
            key::PREV_INDIRECT_VDEV => Field::Value(self.prev_indirect_vdev.map(Value::from)),
            key::CREATE_TXG => Set(self.create_txg.0),
            key::VDEV_LEAF_ZAP => Set(self.leaf_zap.0),
            key::VDEV_TOP_ZAP => Set(self.top_zap.0),
            key::OFFLINE => flag(self.offline),
            key::RESILVER_TXG => Set(self.resilver_txg.0),
            key::REBUILD_TXG => Set(self.rebuild_txg.0),
            key::FAULTED => flag(self.faulted),
            key::DEGRADED => flag(self.degraded),
            key::REMOVED => flag(self.removed),
            _ => return None,
        })
    }
}
