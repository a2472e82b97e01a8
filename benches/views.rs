//! `cargo bench -p zuse-benches --bench views [-- datasets=1000 rounds=50]`: what a look at all datasets of a pool costs after a txg that changed one of them.
//!
//! The pool is in memory. Each round writes to one dataset, waits for the txg, and asks the new view for a property of every dataset. Prints medians of
//! milliseconds: of making the view alone, and with the looks. What views carry over from one to the next saves nearly all of the latter.

use std::sync::Arc;
use std::time::Instant;

use benches::{median, number};
use dmu::NewObject;
use ondisk::{ObjectType, ObjsetType};
use pool::testing::in_memory;
use pool::{Error, NewDataset, Spa};

fn main() -> Result<(), Error> {
    let (datasets, rounds) = (number("datasets", 1000), number("rounds", 50));
    let (spa, _disks) = in_memory("d0", 1);
    let names: Vec<String> = (0..datasets).map(|n| format!("t/d{n}")).collect();
    names.iter().try_for_each(|name| create(&spa, name))?;
    look(&spa, &names)?;
    let (mut made, mut all) = (Vec::new(), Vec::new());
    for (name, _) in names.iter().cycle().zip(0..rounds) {
        write(&spa, name)?;
        spa.sync()?;
        let [view, looks] = look(&spa, &names)?;
        made.push(view);
        all.push(looks);
    }
    println!("after a txg that changed one of {datasets} datasets, ms, medians of {rounds}");
    println!("{:<28}{:>8.3}", "a view", median(made));
    println!("{:<28}{:>8.3}", "a view and all datasets", median(all));
    Ok(())
}

fn create(spa: &Arc<Spa>, name: &str) -> Result<(), Error> {
    let new = NewDataset::inheriting(name, ObjsetType::Zfs);
    spa.create_dataset(new, Box::new(|_, _| Ok(())))
}

fn write(spa: &Arc<Spa>, name: &str) -> Result<(), Error> {
    let objset = spa.objset(&spa.view()?.dataset(name)?)?;
    let tx = spa.tx(1 << 20)?;
    let new = NewObject { object_type: ObjectType::UINT64_OTHER, block_size: 4096, ..NewObject::default() };
    Ok(objset.alloc_object(&tx, &new)?.write(&tx, 0, &[7; 4096])?)
}

/// Returns the milliseconds until there is a view, and until a property of all datasets is read.
fn look(spa: &Arc<Spa>, names: &[String]) -> Result<[f64; 2], Error> {
    let begun = Instant::now();
    let ms = || begun.elapsed().as_secs_f64() * 1000.0;
    let view = spa.view()?;
    let made = ms();
    for name in names {
        view.dataset(name)?.prop("compression")?;
    }
    Ok([made, ms()])
}
