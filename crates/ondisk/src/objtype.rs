//! Object types (OpenZFS: `dmu_object_type_t`).

use std::fmt;

/// The type of an object, as stored. Types from 128 on are described by their own bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ObjectType(pub u8);

/// The way in which an object type's data is byteswapped (OpenZFS: `dmu_object_byteswap_t`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ByteswapClass {
    /// Bytes: nothing to swap.
    Uint8,
    /// 16-bit words.
    Uint16,
    /// 32-bit words.
    Uint32,
    /// 64-bit words.
    Uint64,
    /// ZAP blocks.
    Zap,
    /// Blocks of dnodes.
    Dnode,
    /// An object set.
    Objset,
    /// The znode of ZPL versions before 5.
    Znode,
    /// ACLs of ZPL versions before 3.
    OldAcl,
    /// ACLs.
    Acl,
}

use ByteswapClass as B;

/// name as zdb prints it, byte-swap class, metadata, encrypted
const TABLE: [(&str, B, bool, bool); 54] = [
    ("unallocated", B::Uint8, true, false),
    ("object directory", B::Zap, true, false),
    ("object array", B::Uint64, true, false),
    ("packed nvlist", B::Uint8, true, false),
    ("packed nvlist size", B::Uint64, true, false),
    ("bpobj", B::Uint64, true, false),
    ("bpobj header", B::Uint64, true, false),
    ("SPA space map header", B::Uint64, true, false),
    ("SPA space map", B::Uint64, true, false),
    ("ZIL intent log", B::Uint64, true, true),
    ("DMU dnode", B::Dnode, true, true),
    ("DMU objset", B::Objset, true, false),
    ("DSL directory", B::Uint64, true, false),
    ("DSL directory child map", B::Zap, true, false),
    ("DSL dataset snap map", B::Zap, true, false),
    ("DSL props", B::Zap, true, false),
    ("DSL dataset", B::Uint64, true, false),
    ("ZFS znode", B::Znode, true, false),
    ("ZFS V0 ACL", B::OldAcl, true, true),
    ("ZFS plain file", B::Uint8, false, true),
    ("ZFS directory", B::Zap, true, true),
    ("ZFS master node", B::Zap, true, false),
    ("ZFS delete queue", B::Zap, true, true),
    ("zvol object", B::Uint8, false, true),
    ("zvol prop", B::Zap, true, false),
    ("other uint8[]", B::Uint8, false, true),
    ("other uint64[]", B::Uint64, false, true),
    ("other ZAP", B::Zap, true, false),
    ("persistent error log", B::Zap, true, false),
    ("SPA history", B::Uint8, true, false),
    ("SPA history offsets", B::Uint64, true, false),
    ("Pool properties", B::Zap, true, false),
    ("DSL permissions", B::Zap, true, false),
    ("ZFS ACL", B::Acl, true, true),
    ("ZFS SYSACL", B::Uint8, true, true),
    ("FUID table", B::Uint8, true, true),
    ("FUID table size", B::Uint64, true, false),
    ("DSL dataset next clones", B::Zap, true, false),
    ("scan work queue", B::Zap, true, false),
    ("ZFS user/group/project used", B::Zap, true, true),
    ("ZFS user/group/project quota", B::Zap, true, true),
    ("snapshot refcount tags", B::Zap, true, false),
    ("DDT ZAP algorithm", B::Zap, true, false),
    ("DDT statistics", B::Zap, true, false),
    ("System attributes", B::Uint8, true, true),
    ("SA master node", B::Zap, true, true),
    ("SA attr registration", B::Zap, true, true),
    ("SA attr layouts", B::Zap, true, true),
    ("scan translations", B::Zap, true, false),
    ("deduplicated block", B::Uint8, false, true),
    ("DSL deadlist map", B::Zap, true, false),
    ("DSL deadlist map hdr", B::Uint64, true, false),
    ("DSL dir clones", B::Zap, true, false),
    ("bpobj subobj", B::Uint64, true, false),
];

macro_rules! types {
    ($($(#[$doc:meta])* $name:ident = $n:literal;)*) => {
        $(#[doc = concat!("OpenZFS: `DMU_OT_", stringify!($name), "`.")] pub const $name: ObjectType = ObjectType($n);)*
    };
}

impl ObjectType {
    types! {
        NONE = 0; OBJECT_DIRECTORY = 1; OBJECT_ARRAY = 2; PACKED_NVLIST = 3; PACKED_NVLIST_SIZE = 4; BPOBJ = 5; BPOBJ_HDR = 6;
        SPACE_MAP_HEADER = 7; SPACE_MAP = 8; INTENT_LOG = 9; DNODE = 10; OBJSET = 11; DSL_DIR = 12; DSL_DIR_CHILD_MAP = 13;
        DSL_DS_SNAP_MAP = 14; DSL_PROPS = 15; DSL_DATASET = 16; ZNODE = 17; OLDACL = 18; PLAIN_FILE_CONTENTS = 19;
        DIRECTORY_CONTENTS = 20; MASTER_NODE = 21; UNLINKED_SET = 22; ZVOL = 23; ZVOL_PROP = 24; PLAIN_OTHER = 25;
        UINT64_OTHER = 26; ZAP_OTHER = 27; ERROR_LOG = 28; SPA_HISTORY = 29; SPA_HISTORY_OFFSETS = 30; POOL_PROPS = 31;
        DSL_PERMS = 32; ACL = 33; SYSACL = 34; FUID = 35; FUID_SIZE = 36; NEXT_CLONES = 37; SCAN_QUEUE = 38;
        USERGROUP_USED = 39; USERGROUP_QUOTA = 40; USERREFS = 41; DDT_ZAP = 42; DDT_STATS = 43; SA = 44; SA_MASTER_NODE = 45;
        SA_ATTR_REGISTRATION = 46; SA_ATTR_LAYOUTS = 47; SCAN_XLATE = 48; DEDUP = 49; DEADLIST = 50; DEADLIST_HDR = 51;
        DSL_CLONES = 52; BPOBJ_SUBOBJ = 53;
    }

    /// Bytes of data, as a type described by its own bits (OpenZFS: `DMU_OTN_UINT8_DATA`).
    pub const OTN_UINT8_DATA: ObjectType = ObjectType(0x80);
    /// Bytes of metadata (OpenZFS: `DMU_OTN_UINT8_METADATA`).
    pub const OTN_UINT8_METADATA: ObjectType = ObjectType(0xc0);
    /// 64-bit words of metadata (OpenZFS: `DMU_OTN_UINT64_METADATA`).
    pub const OTN_UINT64_METADATA: ObjectType = ObjectType(0xc3);
    /// A ZAP of data (OpenZFS: `DMU_OTN_ZAP_DATA`).
    pub const OTN_ZAP_DATA: ObjectType = ObjectType(0x84);
    /// A ZAP of metadata (OpenZFS: `DMU_OTN_ZAP_METADATA`).
    pub const OTN_ZAP_METADATA: ObjectType = ObjectType(0xc4);

    /// True if the type is described by its own bits (OpenZFS: `DMU_OT_NEWTYPE`).
    #[must_use]
    pub const fn is_self_describing(self) -> bool {
        self.0 & 0x80 != 0
    }

    /// True if OpenZFS knows this type.
    #[must_use]
    pub const fn is_valid(self) -> bool {
        if self.is_self_describing() { (self.0 & 0x1f) < 10 } else { (self.0 as usize) < TABLE.len() }
    }

    /// True if blocks of this type are metadata (ditto copies, compressed, cached as such).
    #[must_use]
    pub const fn is_metadata(self) -> bool {
        if self.is_self_describing() {
            return self.0 & 0x40 != 0;
        }
        (self.0 as usize) >= TABLE.len() || TABLE[self.0 as usize].2
    }

    /// True if level-0 blocks of this type are encrypted in an encrypted dataset.
    #[must_use]
    pub const fn is_encrypted(self) -> bool {
        if self.is_self_describing() {
            return self.0 & 0x20 != 0;
        }
        (self.0 as usize) < TABLE.len() && TABLE[self.0 as usize].3
    }

    /// The way in which the data is byteswapped; `None` for an unknown type.
    #[must_use]
    pub const fn byteswap_class(self) -> Option<ByteswapClass> {
        if !self.is_self_describing() {
            return if (self.0 as usize) < TABLE.len() { Some(TABLE[self.0 as usize].1) } else { None };
        }
        Some(match self.0 & 0x1f {
            0 => B::Uint8,
            1 => B::Uint16,
            2 => B::Uint32,
            3 => B::Uint64,
            4 => B::Zap,
            5 => B::Dnode,
            6 => B::Objset,
            7 => B::Znode,
            8 => B::OldAcl,
            9 => B::Acl,
            _ => return None,
        })
    }

    /// True if objects of this type are ZAPs.
    #[must_use]
    pub fn is_zap(self) -> bool {
        self.byteswap_class() == Some(B::Zap)
    }

    /// The name that zdb prints.
    #[must_use]
    pub fn name(self) -> String {
        if let Some((name, ..)) = TABLE.get(usize::from(self.0)) {
            return (*name).to_string();
        }
        let class = match self.byteswap_class() {
            Some(B::Uint8) => "uint8",
            Some(B::Uint16) => "uint16",
            Some(B::Uint32) => "uint32",
            Some(B::Uint64) => "uint64",
            Some(B::Zap) => "zap",
            Some(B::Dnode) => "dnode",
            Some(B::Objset) => "objset",
            Some(B::Znode) => "znode",
            Some(B::OldAcl) => "oldacl",
            Some(B::Acl) => "acl",
            None => return "UNKNOWN".to_string(),
        };
        format!("bswap {class} {}", if self.is_metadata() { "metadata" } else { "data" })
    }
}

impl fmt::Debug for ObjectType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}
