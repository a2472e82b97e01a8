//! Opens the pools of `fixtures/` as far as the DMU goes: newest uberblock, MOS, and the object set of each dataset in it.
#![allow(clippy::unwrap_used, dead_code, unreachable_pub)]

use std::sync::Arc;

use base::{ObjectId, Txg};
use dmu::{Objset, Zap};
use ondisk::{BlkPtr, ObjectType};
use oracle::fixtures::{self, Unpacked};
use vdev::VdevTree;
use vdev::import::Candidate;
use zio::Zio;

/// A fixture's pool.
pub struct Fixture {
    pub name: String,
    pub pool: String,
    pub images: Unpacked,
    pub mos: Arc<Objset>,
}

impl Fixture {
    /// Unpacks and opens one; `None` if its MOS cannot be read without knowing of removed vdevs.
    pub fn open(name: &str) -> Option<Fixture> {
        let images = fixtures::unpack(name);
        let candidate: Candidate = vdev::import::scan(std::slice::from_ref(&images.dir)).unwrap().into_iter().next()?;
        let config = candidate.vdev_config().unwrap();
        let tree = VdevTree::open(&config, &|guid| candidate.device(guid).map(|found| found.device.clone())).ok()?;
        let ashift = config.children.iter().map(|top| top.ashift).max().unwrap_or(9);
        let mut ubs: Vec<_> =
            candidate.devices.iter().flat_map(|found| vdev::label::read_uberblocks(&*found.device, ashift)).collect();
        vdev::label::sort_uberblocks(&mut ubs);
        let zio = Arc::new(Zio::new(Arc::new(tree), 256 << 20));
        let rootbp = ubs.first()?.rootbp;
        let mos = Objset::open(zio, ObjectId::MOS, &rootbp).map_err(|err| eprintln!("{name}: {err}")).ok()?;
        let pool = candidate.name.clone();
        let fixture = Fixture { name: name.to_owned(), pool, images, mos };
        if let Some(salt) = fixture.directory().lookup("org.illumos:checksum_salt").unwrap() {
            fixture.mos.zio().set_salt(salt.bytes.as_slice().try_into().unwrap());
        }
        Some(fixture)
    }

    /// The object directory of the MOS.
    pub fn directory(&self) -> Zap {
        Zap::open(self.mos.object(ObjectId(1)).unwrap()).unwrap()
    }

    /// The object sets of all datasets that have one, by DSL dataset object.
    pub fn datasets(&self) -> Vec<Arc<Objset>> {
        let mut sets = Vec::new();
        for object in self.mos.objects() {
            let object = object.unwrap();
            if object.phys().bonus_type != ObjectType::DSL_DATASET {
                continue;
            }
            let bp = BlkPtr::decode(&object.bonus()[128..], object.endian()).unwrap();
            if bp.is_hole() || bp.birth_logical() == Txg(0) {
                continue;
            }
            match Objset::open(self.mos.zio().clone(), object.id(), &bp) {
                Ok(os) => sets.push(os),
                Err(err) => eprintln!("{}: dataset {}: {err}", self.name, object.id()),
            }
        }
        sets
    }
}
