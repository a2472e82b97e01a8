//! The list of blocks known to be damaged (OpenZFS: `spa_errlog.c`).

use base::Txg;

use crate::{Error, Pool, mos};

/// A damaged block, as a scrub or a reader recorded it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ErrorEntry {
    /// The dataset object: of the very dataset in old pools, of the head with feature `head_errlog`.
    pub objset: u64,
    /// The object in it.
    pub object: u64,
    /// The level of the block.
    pub level: i64,
    /// Its number.
    pub blkid: u64,
    /// When it was born, with feature `head_errlog`.
    pub birth: Option<Txg>,
    /// Whether it stands in the log of errors up to now, not in that of the scrub under way.
    pub last: bool,
}

/// A record of four hexadecimal numbers with colons between them.
fn numbers(name: &str) -> Option<[u64; 4]> {
    let mut parts = name.split(':').map(|part| u64::from_str_radix(part, 16).ok());
    let all = [parts.next()??, parts.next()??, parts.next()??, parts.next()??];
    parts.next().is_none().then_some(all)
}

impl Pool {
    /// The blocks known to be damaged.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn errlog(&self) -> Result<Vec<ErrorEntry>, Error> {
        let by_head = self.feature_enabled("head_errlog");
        let mut all = Vec::new();
        for (key, last) in [("errlog_last", true), ("errlog_scrub", false)] {
            let Some(id) = self.mos.number(key)?.filter(|id| *id != 0) else { continue };
            for (name, value) in mos::named_entries(&self.mos.zap(id)?)? {
                let broken = || Error::corrupt(id, format!("error log entry '{name}'"));
                if !by_head {
                    let [objset, object, level, blkid] = numbers(&name).ok_or_else(broken)?;
                    all.push(ErrorEntry { objset, object, level: level as i64, blkid, birth: None, last });
                    continue;
                }
                let head = u64::from_str_radix(&name, 16).map_err(|_| broken())?;
                for (inner, _) in mos::named_entries(&self.mos.zap(value.first())?)? {
                    let [object, level, blkid, birth] = numbers(&inner).ok_or_else(broken)?;
                    all.push(ErrorEntry {
                        objset: head,
                        object,
                        level: level as i64,
                        blkid,
                        birth: Some(Txg(birth)),
                        last,
                    });
                }
            }
        }
        all.sort();
        all.dedup_by(|a, b| {
            (a.objset, a.object, a.level, a.blkid, a.birth) == (b.objset, b.object, b.level, b.blkid, b.birth)
        });
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn entries_are_four_hexadecimal_numbers() {
        assert_eq!(super::numbers("36:1f:0:a"), Some([0x36, 0x1f, 0, 10]));
        assert_eq!(super::numbers("36:1f:0"), None);
        assert_eq!(super::numbers("36:1f:0:a:b"), None);
        assert_eq!(super::numbers("36:x:0:a"), None);
    }
}
