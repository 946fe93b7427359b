//! From the options and the opened devices to what each job does. Everything that can be wrong with an
//! option is found here, before the first I/O, and named together with what mends it.

use std::time::Duration;

use anyhow::Context;
use doorbell::{Controller, ControllerOptions, DmaSpace, DmaSpaceConfig, Lba, Target};

use super::offsets::{Offsets, Region};
use super::options::{IODEPTH_DEFAULT, RUNTIME_DEFAULT, RunOptions};
use crate::failure::usage;
use crate::memory::Memory;
use crate::random::Random;
use crate::target::{Intent, Opened, check_leave, open};
use crate::units::{Amount, duration_text, size_option, size_text};

/// A run that is ready to be started.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) options: RunOptions,
    pub(crate) devices: Vec<Device>,
    /// I/Os that each job keeps outstanding on each device.
    pub(crate) depth: u32,
    /// When the measured part ends by itself, if it does.
    pub(crate) runtime: Option<Duration>,
}

/// One device of a run.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) opened: Opened,
    pub(crate) region: Region,
    /// Commands of a queue pair: more than the depth where an I/O takes several.
    pub(crate) queue_depth: u32,
    /// What buffers and rings are made of, as far as there are any.
    pub(crate) memory: Memory,
}

impl Plan {
    /// Checks the options, opens the devices, checks the options against them.
    pub(crate) fn make(options: &RunOptions) -> anyhow::Result<Self> {
        let intent = match options.rw.read_percent(options.rwmixread) {
            100 => Intent::Read,
            _ => Intent::Overwrite,
        };
        for target in &options.targets {
            check_leave(target, intent, options.leave())?;
        }
        check_duplicates(&options.targets)?;
        let mut controller_options = ControllerOptions::new()
            .queue_pairs(options.numjobs)
            .shadow_doorbells(options.shadow_doorbells.into());
        if options.targets.len() > 1 {
            // One space, so that one pool of buffers serves all devices.
            controller_options = controller_options.space(&DmaSpace::new(DmaSpaceConfig::default()));
        }
        let mut opened = Vec::with_capacity(options.targets.len());
        for target in &options.targets {
            let result = open(target, options.nsid, intent, &controller_options);
            // With one target, everybody knows which one it is.
            opened.push(if options.targets.len() > 1 {
                result.with_context(|| format!("`{target}`"))?
            } else {
                result?
            });
        }
        let depth = depth(options, &opened)?;
        let devices =
            opened.into_iter().map(|opened| device(options, opened, depth)).collect::<Result<_, _>>()?;
        let runtime = match (options.runtime, options.number_ios) {
            (None, None) => Some(RUNTIME_DEFAULT),
            (runtime, _) => runtime,
        };
        Ok(Self { options: options.clone(), devices, depth, runtime })
    }

    /// The sequence of I/Os of one job on one device.
    pub(crate) fn offsets(&self, device: usize, job: u16) -> anyhow::Result<Offsets> {
        let options = &self.options;
        let region = self.devices[device].region;
        let percent = options.rw.read_percent(options.rwmixread);
        let random = Random::of(options.seed, u64::from(job), device as u64);
        if options.rw.is_random() {
            return Ok(Offsets::random(region, percent, random));
        }
        let slice = region.slice(u64::from(job), u64::from(options.numjobs)).ok_or_else(|| {
            usage(format!(
                "--numjobs {}: only {} I/Os of {} fit into the part that is used, fewer than there are jobs; \
                 use fewer jobs or a larger --size",
                options.numjobs,
                region.slots,
                size_text(options.bs)
            ))
        })?;
        Ok(Offsets::sequential(slice, percent, random))
    }

    /// Looks at the memory again, when all of it has been allocated.
    pub(crate) fn note_memory(&mut self) {
        for device in &mut self.devices {
            device.memory = Memory::of(device.opened.controller.space());
        }
    }

    /// The run in words: `randread, 4 KiB, depth 128, 1 job, 5 s`.
    pub(crate) fn title(&self) -> String {
        let options = &self.options;
        let mix = match options.rw.read_percent(options.rwmixread) {
            0 | 100 => String::new(),
            percent => format!(" ({percent} % reads)"),
        };
        let jobs = if options.numjobs == 1 { "job" } else { "jobs" };
        let mut title = format!(
            "{}{mix}, {}, depth {}, {} {jobs}",
            options.rw.name(),
            size_text(options.bs),
            self.depth,
            options.numjobs
        );
        if let Some(runtime) = self.runtime {
            title.push_str(&format!(", {}", duration_text(runtime)));
        }
        if let Some(count) = options.number_ios {
            title.push_str(&format!(", {count} I/Os a job"));
        }
        if !options.ramp_time.is_zero() {
            title.push_str(&format!(", after a ramp of {}", duration_text(options.ramp_time)));
        }
        title
    }
}

fn check_duplicates(targets: &[Target]) -> anyhow::Result<()> {
    for (index, target) in targets.iter().enumerate() {
        // Two emulated controllers of the same description are two devices.
        if !target.is_emulated() && targets[..index].contains(target) {
            return Err(usage(format!(
                "{target} is named twice; name it once, and use --numjobs for more queues"
            )));
        }
    }
    Ok(())
}

fn depth(options: &RunOptions, opened: &[Opened]) -> anyhow::Result<u32> {
    let shallowest = opened.iter().min_by_key(|it| it.controller.depth_max());
    let Some(shallowest) = shallowest else { return Err(usage("name a target, such as emu:")) };
    let max = shallowest.controller.depth_max();
    match options.iodepth {
        None => Ok(IODEPTH_DEFAULT.min(max)),
        Some(depth) if depth <= max => Ok(depth),
        Some(depth) => Err(usage(format!(
            "--iodepth {depth} is more than the {max} commands that a queue of {} can hold; use \
             --iodepth {max} or less, and --numjobs for more queues",
            shallowest.target
        ))),
    }
}

fn device(options: &RunOptions, opened: Opened, depth: u32) -> anyhow::Result<Device> {
    let target = &opened.target;
    let granted = opened.controller.queue_pairs_max();
    if u32::from(options.numjobs) > granted {
        return Err(usage(format!(
            "--numjobs {} needs as many queue pairs, and {target} has {granted}; use --numjobs {granted} \
             or less",
            options.numjobs
        )));
    }
    let block_bytes = u64::from(opened.namespace.block_bytes());
    if !options.bs.is_multiple_of(block_bytes) {
        return Err(usage(format!(
            "--bs {} is not a multiple of the block of {target}, {block_bytes} bytes; use --bs {}",
            size_option(options.bs),
            size_option(options.bs.checked_next_multiple_of(block_bytes).unwrap_or(block_bytes))
        )));
    }
    let region = region(options, &opened, block_bytes)?;
    let queue_depth = queue_depth(&opened.controller, options.bs, depth);
    let memory = Memory::of(opened.controller.space());
    Ok(Device { opened, region, queue_depth, memory })
}

/// The part of the namespace that `--offset` and `--size` name.
fn region(options: &RunOptions, opened: &Opened, block_bytes: u64) -> anyhow::Result<Region> {
    let (target, bs) = (&opened.target, options.bs);
    let whole = opened.namespace.bytes();
    let aligned = |name: &str, amount: Amount| match amount {
        Amount::Bytes(bytes) if !bytes.is_multiple_of(block_bytes) => Err(usage(format!(
            "--{name} {} is not a multiple of the block of {target}, {block_bytes} bytes; use --{name} {}",
            size_option(bytes),
            size_option(bytes.checked_next_multiple_of(block_bytes).unwrap_or(block_bytes))
        ))),
        Amount::Bytes(bytes) => Ok(bytes),
        Amount::Percent(_) => Ok(amount.of(whole) / bs * bs),
    };
    let offset = aligned("offset", options.offset)?;
    if offset >= whole {
        return Err(usage(format!(
            "--offset {} is at or beyond the end of {target}, which has {}; use a smaller one",
            size_option(offset),
            size_text(whole)
        )));
    }
    let rest = whole - offset;
    let size = options.size.map_or(Ok(rest), |size| aligned("size", size))?;
    // A percentage is of the whole namespace; what the offset has taken away from it is not there.
    let size = if matches!(options.size, Some(Amount::Percent(_))) { size.min(rest) } else { size };
    if size > rest {
        return Err(usage(format!(
            "--size {} from --offset {} on ends beyond {target}, which has {}; use --size {} or less",
            size_option(size),
            size_option(offset),
            size_text(whole),
            size_option(rest)
        )));
    }
    if size < bs {
        return Err(usage(format!(
            "--bs {} does not fit into the {} that are used of {target}; use a smaller --bs or a larger \
             --size",
            size_option(bs),
            size_text(size)
        )));
    }
    Ok(Region { start: Lba(offset / block_bytes), slots: size / bs, slot_blocks: bs / block_bytes })
}

/// Commands of a queue, with room for I/Os that the driver must split.
fn queue_depth(controller: &Controller, bs: u64, depth: u32) -> u32 {
    let parts = u32::try_from(bs.div_ceil(controller.transfer_bytes_max().max(1))).unwrap_or(u32::MAX);
    depth.saturating_mul(parts).min(controller.depth_max())
}
