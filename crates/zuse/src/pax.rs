//! Archives in the PAX format, one entry at a time, with everything that a file has: ids and times in full, xattrs
//! (`SCHILY.xattr.`), POSIX ACLs (`SCHILY.acl.`), holes (GNU sparse format 1.0).

use std::io::{self, Write};

use tar::{EntryType, Header};

/// The attributes of an entry.
#[derive(Clone, Debug, Default)]
pub struct Entry {
    /// The path in the archive, without a leading slash.
    pub path: Vec<u8>,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u64,
    /// Group.
    pub gid: u64,
    /// Seconds and nanoseconds.
    pub mtime: (i64, u32),
    /// Access and change time, if they are to be kept.
    pub atime: Option<(i64, u32)>,
    /// Change time.
    pub ctime: Option<(i64, u32)>,
    /// The target of a symbolic or hard link.
    pub link: Vec<u8>,
    /// Device number of a device: major, minor.
    pub device: (u32, u32),
    /// Name and value of each extended attribute.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// POSIX ACLs in the short text form: access and default.
    pub acls: (Option<String>, Option<String>),
}

/// A PAX archive that is being written.
#[derive(Debug)]
pub struct Archive<W: Write> {
    out: W,
}

const BLOCK: usize = 512;

impl<W: Write> Archive<W> {
    /// An archive that is written to `out`; buffer it.
    pub fn new(out: W) -> Self {
        Archive { out }
    }

    /// Adds an entry that has no data: a directory, link, device, pipe.
    ///
    /// # Errors
    /// What `out` says.
    pub fn add(&mut self, kind: EntryType, entry: &Entry) -> io::Result<()> {
        self.head(kind, entry, 0, Vec::new())
    }

    /// Begins a file of `size` bytes of which the ranges in `data` are stored, in order, and the rest is holes. Without a
    /// hole the file is an ordinary one. The bytes follow with [`Archive::write`], then [`Archive::finish_file`].
    ///
    /// # Errors
    /// What `out` says.
    pub fn begin_file(&mut self, entry: &Entry, size: u64, data: &[(u64, u64)]) -> io::Result<u64> {
        let stored: u64 = data.iter().map(|(_, len)| len).sum();
        if stored == size {
            self.head(EntryType::Regular, entry, size, Vec::new())?;
            return Ok(size);
        }
        // GNU tar makes a file as long as its map says: a hole at the end is told by an empty range behind it
        let end = data.last().is_none_or(|(start, len)| start + len < size).then_some((size, 0));
        let mut map = format!("{}\n", data.len() + usize::from(end.is_some()));
        for (start, len) in data.iter().chain(&end) {
            map.push_str(&format!("{start}\n{len}\n"));
        }
        map.extend(std::iter::repeat_n('\0', padding(map.len() as u64)));
        let records = vec![
            ("GNU.sparse.major".into(), b"1".to_vec()),
            ("GNU.sparse.minor".into(), b"0".to_vec()),
            ("GNU.sparse.name".into(), entry.path.clone()),
            ("GNU.sparse.realsize".into(), size.to_string().into_bytes()),
        ];
        let total = map.len() as u64 + stored;
        self.head(EntryType::Regular, entry, total, records)?;
        self.out.write_all(map.as_bytes())?;
        Ok(total)
    }

    /// Data of the file that was begun.
    ///
    /// # Errors
    /// What `out` says.
    pub fn write(&mut self, data: &[u8]) -> io::Result<()> {
        self.out.write_all(data)
    }

    /// Fills the last block of a file of which `total` bytes were announced by [`Archive::begin_file`].
    ///
    /// # Errors
    /// What `out` says.
    pub fn finish_file(&mut self, total: u64) -> io::Result<()> {
        self.out.write_all(&[0; BLOCK][..padding(total)])
    }

    /// Ends the archive and gives the output back.
    ///
    /// # Errors
    /// What `out` says.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.write_all(&[0; 2 * BLOCK])?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn head(&mut self, kind: EntryType, e: &Entry, size: u64, mut records: Vec<(String, Vec<u8>)>) -> io::Result<()> {
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        header.set_mode(e.mode);
        let mut keep = |name: &str, value: Vec<u8>| records.push((name.into(), value));
        if !place(&mut header.as_old_mut().name, &e.path) {
            keep("path", e.path.clone());
        }
        if !place(&mut header.as_old_mut().linkname, &e.link) {
            keep("linkpath", e.link.clone());
        }
        const OCTAL_7: u64 = 0o7_777_777;
        header.set_uid(e.uid.min(OCTAL_7));
        header.set_gid(e.gid.min(OCTAL_7));
        if e.uid > OCTAL_7 {
            keep("uid", e.uid.to_string().into_bytes());
        }
        if e.gid > OCTAL_7 {
            keep("gid", e.gid.to_string().into_bytes());
        }
        const OCTAL_11: u64 = 0o77_777_777_777;
        header.set_size(size.min(OCTAL_11));
        if size > OCTAL_11 {
            keep("size", size.to_string().into_bytes());
        }
        header.set_mtime(u64::try_from(e.mtime.0).unwrap_or(0).min(OCTAL_11));
        keep("mtime", time(e.mtime));
        for (name, t) in [("atime", e.atime), ("ctime", e.ctime)] {
            if let Some(t) = t {
                keep(name, time(t));
            }
        }
        let (major, minor) = e.device;
        // seven octal digits each; a larger number does not exist on Linux for a major, and is cut for a minor
        header.set_device_major(major.min(OCTAL_7 as u32))?;
        header.set_device_minor(minor.min(OCTAL_7 as u32))?;
        for (name, acl) in [("SCHILY.acl.access", &e.acls.0), ("SCHILY.acl.default", &e.acls.1)] {
            if let Some(acl) = acl {
                keep(name, acl.clone().into_bytes());
            }
        }
        let mut encoded = Vec::new();
        for (name, value) in &records {
            record(&mut encoded, name.as_bytes(), value);
        }
        for (name, value) in &e.xattrs {
            record(&mut encoded, &[b"SCHILY.xattr.", escaped(name).as_slice()].concat(), value);
        }
        self.extended(&encoded)?;
        header.set_cksum();
        self.out.write_all(header.as_bytes())
    }

    fn extended(&mut self, records: &[u8]) -> io::Result<()> {
        let mut header = Header::new_ustar();
        header.set_entry_type(EntryType::XHeader);
        place(&mut header.as_old_mut().name, b"././@PaxHeader");
        header.set_mode(0o644);
        header.set_size(records.len() as u64);
        header.set_cksum();
        self.out.write_all(header.as_bytes())?;
        self.out.write_all(records)?;
        self.out.write_all(&[0; BLOCK][..padding(records.len() as u64)])
    }
}

/// Puts `value` into a field of the header; `false` if it is too long or not plain ASCII, and a record must carry it.
fn place(field: &mut [u8], value: &[u8]) -> bool {
    let fits = value.len() <= field.len();
    for (to, from) in field.iter_mut().zip(value) {
        *to = *from;
    }
    fits && value.is_ascii()
}

/// One record: its own length in decimal, a space, `name=value`, a newline.
fn record(into: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    let rest = name.len() + value.len() + 3;
    let mut len = rest + 1;
    while len != rest + len.to_string().len() {
        len = rest + len.to_string().len();
    }
    into.extend_from_slice(format!("{len} ").as_bytes());
    into.extend_from_slice(name);
    into.push(b'=');
    into.extend_from_slice(value);
    into.push(b'\n');
}

/// The name of an attribute without `=`, which ends a record's name: as GNU tar writes it.
fn escaped(name: &[u8]) -> Vec<u8> {
    let escape = |byte: &u8| match byte {
        b'=' => b"%3D".to_vec(),
        b'%' => b"%25".to_vec(),
        byte => vec![*byte],
    };
    name.iter().flat_map(escape).collect()
}

fn time((sec, nsec): (i64, u32)) -> Vec<u8> {
    match nsec {
        0 => sec.to_string().into_bytes(),
        // a time before 1970 counts its fraction upwards, a decimal number downwards
        n if sec < 0 => {
            let (whole, frac) = (-(sec + 1), 1_000_000_000 - n);
            format!("-{whole}.{frac:09}").into_bytes()
        }
        n => format!("{sec}.{n:09}").into_bytes(),
    }
}

fn padding(len: u64) -> usize {
    (BLOCK - (len % BLOCK as u64) as usize) % BLOCK
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn records_count_their_own_length() {
        let mut out = Vec::new();
        record(&mut out, b"path", b"x");
        assert_eq!(out, b"9 path=x\n");
        for n in 0..300 {
            let mut out = Vec::new();
            record(&mut out, b"k", &vec![b'v'; n]);
            let text = String::from_utf8(out).unwrap();
            assert_eq!(text.split(' ').next().unwrap().parse::<usize>().unwrap(), text.len());
        }
    }

    #[test]
    fn times_before_1970_keep_their_fraction() {
        assert_eq!(time((-2, 250_000_000)), b"-1.750000000");
        assert_eq!(time((5, 1)), b"5.000000001");
        assert_eq!(time((-2, 0)), b"-2");
    }

    #[test]
    fn a_hole_at_the_end_is_in_the_map() {
        let map_of = |data: &[(u64, u64)]| {
            let mut archive = Archive::new(Vec::new());
            let total = archive.begin_file(&Entry::default(), 9000, data).unwrap();
            let stored: u64 = data.iter().map(|(_, len)| len).sum();
            assert_eq!(total, 512 + stored);
            let bytes = archive.finish().unwrap();
            // behind the extended header, its data, and the header
            let map = bytes.get(3 * BLOCK..4 * BLOCK).unwrap();
            String::from_utf8(map.to_vec()).unwrap().trim_end_matches('\0').to_owned()
        };
        assert_eq!(map_of(&[(0, 10)]), "2\n0\n10\n9000\n0\n");
        assert_eq!(map_of(&[]), "1\n9000\n0\n");
        assert_eq!(map_of(&[(8000, 1000)]), "1\n8000\n1000\n");
    }

    #[test]
    fn what_is_written_is_read_by_the_tar_crate() {
        let mut archive = Archive::new(Vec::new());
        let long = vec![b'n'; 300];
        let entry = Entry {
            path: long.clone(),
            mode: 0o640,
            uid: 4_000_000_000,
            mtime: (1_700_000_000, 5),
            xattrs: vec![(b"user.a".to_vec(), vec![0, 255])],
            ..Entry::default()
        };
        let total = archive.begin_file(&entry, 5, &[(0, 5)]).unwrap();
        archive.write(b"hello").unwrap();
        archive.finish_file(total).unwrap();
        archive.add(EntryType::Directory, &Entry { path: b"d/".to_vec(), mode: 0o755, ..Entry::default() }).unwrap();
        let bytes = archive.finish().unwrap();
        let mut read = tar::Archive::new(bytes.as_slice());
        let mut entries = read.entries().unwrap();
        let mut file = entries.next().unwrap().unwrap();
        assert_eq!(&*file.path_bytes(), long.as_slice());
        let records: Vec<_> = file.pax_extensions().unwrap().unwrap().map(|r| r.unwrap()).collect();
        let value = |k: &str| records.iter().find(|r| r.key() == Ok(k)).map(|r| r.value_bytes().to_vec()).unwrap();
        assert_eq!(value("uid"), b"4000000000");
        assert_eq!(value("mtime"), b"1700000000.000000005");
        assert_eq!(value("SCHILY.xattr.user.a"), [0, 255]);
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello");
        assert!(entries.next().unwrap().unwrap().header().entry_type().is_dir());
        assert!(entries.next().is_none());
    }
}
