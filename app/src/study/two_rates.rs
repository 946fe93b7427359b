//! Two queues of depth 64 that share 64 IDs: one whose requests take 1 ms, one whose requests take 100 ms.
//!
//! It happens in virtual time, so that nothing but the order of events counts: a second takes some
//! milliseconds, and comes out the same everywhere. Rounds differ in who begins.

use std::sync::Arc;
use std::time::Duration;

use doorbell::emulator::{Emulator, EmulatorConfig};
use doorbell::spec::Nanos;
use doorbell::{
    Clock, Controller, ControllerOptions, DmaBuf, DmaSpace, DmaSpaceConfig, FairShare, Lba, Namespace, Nsid,
    QueueConfig, QueuePair, Request, SharedIds, SubmitError,
};

use super::comparison::Round;
use super::contest::Totals;

/// One of the two queues, on a controller of its own.
#[derive(Debug)]
struct Side {
    queue: QueuePair,
    namespace: Namespace,
    idle: Vec<DmaBuf>,
    device: Arc<Emulator>,
    _controller: Controller,
}

/// What becomes of requests that were refused at the beginning, since all IDs were in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refused {
    /// They are forgotten: each queue goes on with as many as it has got.
    Forgotten,
    /// They are tried again at every turn, so that both queues are in line for more all the time.
    TriedAgain,
}

/// The IOPS of 100 ms and of 1 ms, if each request that has completed is followed by the next.
pub(super) fn two_rates(round: usize) -> anyhow::Result<Round> {
    measure(round, Refused::Forgotten)
}

/// The same, if each queue asks for all of its depth all the time.
pub(super) fn two_rates_in_line(round: usize) -> anyhow::Result<Round> {
    measure(round, Refused::TriedAgain)
}

fn measure(round: usize, refused: Refused) -> anyhow::Result<Round> {
    let (clock, space) = (Clock::virtual_time(), DmaSpace::new(DmaSpaceConfig::default()));
    let ids = SharedIds::new(IDS, 2, FairShare::Off)?;
    let mut sides =
        [Side::set_up(&clock, &space, &ids, "100ms")?, Side::set_up(&clock, &space, &ids, "1ms")?];
    // Both begin at the same time: one request of this one, one of that.
    let mut wants = true;
    while wants {
        wants = false;
        for at in [round, round + 1] {
            wants |= sides[at % 2].submit()?;
        }
    }
    let end = clock.now().after(SPAN);
    while clock.now() < end {
        for side in &mut sides {
            side.device.step(usize::MAX);
            side.turn(refused)?;
            side.device.step(usize::MAX);
        }
        let due = sides.iter().filter_map(|side| side.device.next_due()).min().unwrap_or(Nanos(0));
        clock.advance(Duration::from_nanos(due.since(clock.now()).max(1)));
    }
    let totals = [0, 1].map(|side: usize| Totals::of(sides[side].queue.stats()));
    #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^53")]
    let rates = totals.map(|totals| totals.requests as f64 / SPAN.as_secs_f64());
    Ok((rates, totals))
}

impl Side {
    fn set_up(clock: &Clock, space: &DmaSpace, ids: &SharedIds, latency: &str) -> anyhow::Result<Self> {
        let config: EmulatorConfig = format!("backend=null,size=1G,latency={latency}").parse()?;
        let device = Emulator::new(config, clock.clone())?;
        let options = ControllerOptions::new().space(space).clock(clock);
        let controller = options.open_transport(device.clone())?;
        let mut config = QueueConfig::default();
        config.shared_ids = Some(ids.clone());
        let queue = controller.create_queue(config)?;
        let namespace = controller.namespace(Nsid(1))?;
        let pool = space.pool(4096, usize::from(IDS))?;
        let idle = std::iter::from_fn(|| pool.take()).collect();
        Ok(Self { queue, namespace, idle, device, _controller: controller })
    }

    /// Follows each request that has completed by the next one.
    fn turn(&mut self, refused: Refused) -> anyhow::Result<()> {
        let Self { queue, namespace, idle, .. } = self;
        let mut failed = false;
        queue.poll(usize::MAX, |plug, completion| {
            failed |= completion.result.is_err();
            let Some(buffer) = completion.buffer.into_dma_buf() else { return };
            if let Err(refused) = plug.submit(Request::read(namespace, Lba(0), buffer)) {
                failed |= refused.error != SubmitError::QueueFull;
                idle.extend(refused.request.into_buffer().into_dma_buf());
            }
        });
        anyhow::ensure!(!failed, "a read has failed: this is a bug in Doorbell");
        match refused {
            Refused::Forgotten => {}
            Refused::TriedAgain => while self.submit()? {},
        }
        Ok(())
    }

    /// Submits one more. False if none waits, or there is no ID for it.
    fn submit(&mut self) -> anyhow::Result<bool> {
        let Some(buffer) = self.idle.pop() else { return Ok(false) };
        let Err(back) = self.queue.submit(Request::read(&self.namespace, Lba(0), buffer)) else {
            return Ok(true);
        };
        anyhow::ensure!(back.error == SubmitError::QueueFull, "a read was refused: {}", back.error);
        self.idle.extend(back.request.into_buffer().into_dma_buf());
        Ok(false)
    }
}

const IDS: u16 = 64;
const SPAN: Duration = Duration::from_secs(5);
