//! The host identity of this machine, as pools record it.

use std::path::Path;

/// The files in which the kernel module keeps the hostid it was given (in hexadecimal; as a parameter, in decimal); 0
/// if none.
const OF_KERNEL: [(&str, u32); 2] = [("proc/sys/kernel/spl/hostid", 16), ("sys/module/spl/parameters/spl_hostid", 10)];

/// The hostid of the kernel's ZFS, else that of `/etc/hostid`; 0 without one (OpenZFS: `get_system_hostid`). Pools
/// that both the kernel and this program write must see one host.
#[must_use]
pub fn id() -> u64 {
    id_below(Path::new("/"))
}

fn id_below(root: &Path) -> u64 {
    let given = OF_KERNEL.iter().find_map(|(path, radix)| {
        let text = std::fs::read_to_string(root.join(path)).ok()?;
        u64::from_str_radix(text.trim(), *radix).ok().filter(|id| *id != 0)
    });
    let of_file = || {
        let bytes = std::fs::read(root.join("etc/hostid")).unwrap_or_default();
        bytes.first_chunk::<4>().map_or(0, |b| u32::from_ne_bytes(*b).into())
    };
    given.unwrap_or_else(of_file) & u64::from(u32::MAX)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_number_stands_before_the_files() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, bytes: &[u8]| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        };
        assert_eq!(id_below(root.path()), 0);
        put("etc/hostid", &0x1234_5678u32.to_ne_bytes());
        put(OF_KERNEL[1].0, b"0\n");
        assert_eq!(id_below(root.path()), 0x1234_5678);
        put(OF_KERNEL[1].0, b"4660\n");
        assert_eq!(id_below(root.path()), 0x1234);
        put(OF_KERNEL[0].0, b"beef\n");
        assert_eq!(id_below(root.path()), 0xbeef);
    }
}
