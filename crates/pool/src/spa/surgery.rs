//! Vdevs that get siblings and lose them, in the configuration of a pool: lists in, lists out.
//!
//! A device that gets its first sibling moves below a new vdev, a mirror, replacing or spare, which takes its place. One whose last sibling goes
//! takes the place of its parent. Where that place is a top-level one, what belongs to the place moves along: the objects and figures of its space, its
//! ZAP and its purpose. The guid moves only upwards, to the device that is left: a device that was offline while its sibling went would otherwise tell, at
//! the next import, of a top-level vdev that nobody knows.
//!
//! OpenZFS: `vdev_add_parent`, `vdev_remove_parent`, `vdev_top_transfer`, `vdev_compact_children`.

use base::Guid;
use nvlist::NvList;
use ondisk::label::key;
use vdev::VdevType;

/// The names that belong to a top-level place, in the order in which OpenZFS writes them.
const OF_TOP: [&str; 11] = [
    key::METASLAB_ARRAY,
    key::METASLAB_SHIFT,
    key::ASHIFT,
    key::ASIZE,
    key::MIN_ALLOC,
    key::IS_LOG,
    key::NON_ALLOCATING,
    key::REMOVING,
    key::ALLOCATION_BIAS,
    key::CREATE_TXG,
    key::VDEV_TOP_ZAP,
];

/// In the configuration of a leaf below a spare vdev: as soon as it has everything, the other one there goes (OpenZFS: `ZPOOL_CONFIG_UNSPARE`).
pub(crate) const UNSPARE: &str = "unspare";
/// What in-place replacement puts behind the path of the old device, so that nobody opens the new one by it.
const OLD: &str = "/old";

/// The vdev that comes between a device and its parent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parent {
    pub(crate) kind: VdevType,
    pub(crate) guid: Guid,
}

/// Puts `new` beside the vdev `old`, below `root`: among its siblings if its parent is a `parent.kind`, else with it below a new parent.
pub(crate) fn put_beside(root: &mut NvList, old: Guid, new: &NvList, parent: Parent) -> bool {
    let is_top = root.get_str(key::TYPE) == Some(VdevType::Root.name());
    let is_kind = root.get_str(key::TYPE) == Some(parent.kind.name());
    let Some(children) = root.get_nvlist_array_mut(key::CHILDREN) else { return false };
    let has = |child: &NvList| child.get_u64(key::GUID) == Some(old.0);
    let Some(at) = children.iter().position(has) else {
        return children.iter_mut().any(|child| put_beside(child, old, new, parent));
    };
    let mut new = new.clone();
    if is_kind {
        new.insert(key::ID, children.len() as u64);
        children.push(new);
        return true;
    }
    let Some(place) = children.get_mut(at) else { return false };
    let mut own = std::mem::take(place);
    place.insert(key::TYPE, parent.kind.name());
    place.insert(key::ID, own.get_u64(key::ID).unwrap_or(at as u64));
    place.insert(key::GUID, parent.guid.0);
    if is_top {
        move_place(&mut own, place);
    } else if let Some(txg) = own.get(key::CREATE_TXG) {
        place.insert(key::CREATE_TXG, txg.clone());
    }
    own.insert(key::ID, 0u64);
    new.insert(key::ID, 1u64);
    place.insert(key::CHILDREN, vec![own, new]);
    true
}

/// A vdev that was taken out.
#[derive(Debug)]
pub(crate) struct TakenOut {
    /// Its configuration as it was.
    pub(crate) vdev: NvList,
    /// A sibling that has another guid now: that before, and that now.
    pub(crate) renamed: Option<(Guid, Guid)>,
}

/// Takes the vdev `guid` out of the mirror, replacing or spare that it is in, below `root`. A last sibling takes the place of the parent.
pub(crate) fn take_out(root: &mut NvList, guid: Guid) -> Option<TakenOut> {
    let is_top = root.get_str(key::TYPE) == Some(VdevType::Root.name());
    let children = root.get_nvlist_array_mut(key::CHILDREN)?;
    let is_parent = |vdev: &NvList| {
        let below = vdev.get_nvlist_array(key::CHILDREN).unwrap_or(&[]);
        below.iter().any(|child| child.get_u64(key::GUID) == Some(guid.0))
    };
    let Some(parent) = children.iter_mut().find(|child| is_parent(child)) else {
        return children.iter_mut().find_map(|child| take_out(child, guid));
    };
    let siblings = parent.get_nvlist_array_mut(key::CHILDREN)?;
    let at = siblings.iter().position(|child| child.get_u64(key::GUID) == Some(guid.0))?;
    let vdev = siblings.remove(at);
    for (id, sibling) in (0u64..).zip(siblings.iter_mut()) {
        sibling.insert(key::ID, id);
    }
    let is_replacing = parent.get_str(key::TYPE) == Some(VdevType::Replacing.name());
    let siblings = parent.get_nvlist_array_mut(key::CHILDREN)?;
    if let Some(path) = vdev.get_str(key::PATH).filter(|_| is_replacing && at > 0) {
        let old = format!("{path}{OLD}");
        if let Some(sibling) = siblings.iter_mut().find(|sibling| sibling.get_str(key::PATH) == Some(&old)) {
            sibling.insert(key::PATH, path);
        }
    }
    if siblings.len() > 1 {
        return Some(TakenOut { vdev, renamed: None });
    }
    let mut last = siblings.pop()?;
    // there is no spare any more that could go
    last.remove_all(UNSPARE);
    let renamed = is_top.then(|| {
        let before = Guid(last.get_u64(key::GUID).unwrap_or(0));
        let now = Guid(parent.get_u64(key::GUID).unwrap_or(0));
        last.insert(key::GUID, now.0);
        move_place(parent, &mut last);
        (before, now)
    });
    if let Some(id) = parent.get_u64(key::ID) {
        last.insert(key::ID, id);
    }
    *parent = last;
    Some(TakenOut { vdev, renamed })
}

/// Moves what belongs to a top-level place. The txg in which the vdev was made stays with both.
fn move_place(from: &mut NvList, to: &mut NvList) {
    for name in OF_TOP {
        if let Some(value) = from.get(name).cloned() {
            if name != key::CREATE_TXG {
                from.remove_all(name);
            }
            to.insert(name, value);
        }
    }
}

/// Takes what belongs to a top-level place from a vdev that was laid out for one.
pub(crate) fn forget_place(vdev: &mut NvList) {
    for name in OF_TOP {
        vdev.remove_all(name);
    }
}

/// The top-level vdev of `root` that the vdev `guid` belongs to.
pub(crate) fn top_with(root: &NvList, guid: Guid) -> Option<&NvList> {
    fn has(vdev: &NvList, guid: Guid) -> bool {
        let below = vdev.get_nvlist_array(key::CHILDREN).unwrap_or(&[]);
        vdev.get_u64(key::GUID) == Some(guid.0) || below.iter().any(|child| has(child, guid))
    }
    root.get_nvlist_array(key::CHILDREN)?.iter().find(|top| has(top, guid))
}

/// Makes the path of `old` one that no device has, if `new` is to be at the same one.
pub(crate) fn make_way(root: &mut NvList, old: Guid, new: &str) {
    super::config::edit_vdev(root, old.0, &mut |vdev| {
        if vdev.get_str(key::PATH) == Some(new) {
            vdev.insert(key::PATH, format!("{new}{OLD}").as_str());
            vdev.remove_all(key::DEVID);
        }
    });
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn vdev(kind: &str, id: u64, guid: u64, children: Vec<NvList>) -> NvList {
        let mut list = NvList::new();
        list.insert(key::TYPE, kind);
        list.insert(key::ID, id);
        list.insert(key::GUID, guid);
        match children.is_empty() {
            true => list.insert(key::PATH, format!("/d{guid}").as_str()),
            false => list.insert(key::CHILDREN, children),
        }
        list
    }

    fn top(mut list: NvList) -> NvList {
        list.insert(key::METASLAB_ARRAY, 30u64);
        list.insert(key::ASHIFT, 12u64);
        list.insert(key::CREATE_TXG, 4u64);
        list
    }

    /// The tree in short: type, guid, an asterisk for a place of its own, what is below.
    fn short(list: &NvList) -> String {
        let below: Vec<String> = list.get_nvlist_array(key::CHILDREN).unwrap_or(&[]).iter().map(short).collect();
        for (id, child) in (0u64..).zip(list.get_nvlist_array(key::CHILDREN).unwrap_or(&[])) {
            assert_eq!(child.get_u64(key::ID), Some(id), "{child:?}");
        }
        let place = if list.contains(key::METASLAB_ARRAY) && list.contains(key::ASHIFT) { "*" } else { "" };
        let own = format!("{}{}{place}", list.get_str(key::TYPE).unwrap(), list.get_u64(key::GUID).unwrap());
        if below.is_empty() { own } else { format!("{own}({})", below.join(" ")) }
    }

    fn beside(root: &mut NvList, old: u64, new: u64, kind: VdevType, parent: u64) {
        let leaf = vdev("file", 9, new, vec![]);
        assert!(put_beside(root, Guid(old), &leaf, Parent { kind, guid: Guid(parent) }));
    }

    #[test]
    fn a_device_gets_a_sibling_and_loses_it() {
        let mut root = vdev("root", 0, 1, vec![top(vdev("file", 0, 2, vec![])), top(vdev("file", 1, 3, vec![]))]);
        beside(&mut root, 3, 4, VdevType::Mirror, 5);
        assert_eq!(short(&root), "root1(file2* mirror5*(file3 file4))");
        beside(&mut root, 3, 6, VdevType::Mirror, 7);
        assert_eq!(short(&root), "root1(file2* mirror5*(file3 file4 file6))");
        let taken = take_out(&mut root, Guid(4)).unwrap();
        assert_eq!((taken.vdev.get_u64(key::GUID), taken.renamed), (Some(4), None));
        assert_eq!(short(&root), "root1(file2* mirror5*(file3 file6))");
        let taken = take_out(&mut root, Guid(3)).unwrap();
        assert_eq!(taken.renamed, Some((Guid(6), Guid(5))), "the one that is left has the guid of its place");
        assert_eq!(short(&root), "root1(file2* file5*)");
        let left = root.get_nvlist_array(key::CHILDREN).unwrap().last().unwrap();
        assert_eq!((left.get_str(key::PATH), left.get_u64(key::CREATE_TXG)), (Some("/d6"), Some(4)));
    }

    #[test]
    fn below_a_raidz_the_guids_stay() {
        let below = vec![vdev("file", 0, 3, vec![]), vdev("file", 1, 4, vec![])];
        let mut root = vdev("root", 0, 1, vec![top(vdev("raidz", 0, 2, below))]);
        beside(&mut root, 4, 5, VdevType::Spare, 6);
        beside(&mut root, 4, 7, VdevType::Replacing, 8);
        assert_eq!(short(&root), "root1(raidz2*(file3 spare6(replacing8(file4 file7) file5)))");
        assert_eq!(take_out(&mut root, Guid(4)).unwrap().renamed, None);
        assert_eq!(short(&root), "root1(raidz2*(file3 spare6(file7 file5)))");
        assert_eq!(take_out(&mut root, Guid(5)).unwrap().renamed, None);
        assert_eq!(short(&root), "root1(raidz2*(file3 file7))");
        assert!(
            take_out(&mut root, Guid(5)).is_none()
                && !put_beside(&mut root, Guid(5), &NvList::new(), Parent { kind: VdevType::Mirror, guid: Guid(9) })
        );
    }

    #[test]
    fn an_old_device_makes_way_and_comes_back() {
        let mut root = vdev("root", 0, 1, vec![top(vdev("file", 0, 2, vec![]))]);
        make_way(&mut root, Guid(2), "/elsewhere");
        make_way(&mut root, Guid(2), "/d2");
        let mut new = vdev("file", 0, 3, vec![]);
        new.insert(key::PATH, "/d2");
        assert!(put_beside(&mut root, Guid(2), &new, Parent { kind: VdevType::Replacing, guid: Guid(4) }));
        let path = |root: &NvList, guid: u64| {
            let mut path = None;
            crate::spa::config::edit_vdev(&mut root.clone(), guid, &mut |v| {
                path = v.get_str(key::PATH).map(str::to_owned)
            });
            path.unwrap()
        };
        assert_eq!((path(&root, 2), path(&root, 3)), ("/d2/old".to_owned(), "/d2".to_owned()));
        take_out(&mut root, Guid(3)).unwrap();
        assert_eq!(path(&root, 4), "/d2", "the replacement was called off");
    }
}
