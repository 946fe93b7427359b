//! One controller, one queue pair, one namespace: what most scenarios need, driven until requests have ended.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use doorbell::{
    Buffer, Completion, Controller, DmaBuf, Lba, Namespace, Nsid, QueueConfig, QueuePair, Rejected, Request,
    SubmitError,
};
use doorbell_spec::Clock;

use crate::bytes::difference;
use crate::{Place, Random};

/// A controller in use.
#[derive(Debug)]
pub struct Rig {
    /// The queue pair. Declared first: it goes before the controller.
    pub queue: QueuePair,
    /// The namespace that requests are for.
    pub namespace: Namespace,
    /// The controller.
    pub controller: Controller,
    clock: Clock,
}

impl Rig {
    /// The place's controller with a queue of 32 on namespace 1.
    ///
    /// # Errors
    /// It does not come up.
    pub fn new(place: &mut Place) -> Result<Self> {
        let controller = place.controller()?;
        Self::on(place, controller, 32)
    }

    /// A software controller of this form, with a queue of this depth on its first namespace.
    ///
    /// # Errors
    /// It does not come up.
    pub fn emulated(place: &mut Place, config: &str, depth: u32) -> Result<Self> {
        let emulator = place.emulator(config)?;
        let controller = place.options().open_transport(emulator)?;
        Self::on(place, controller, depth)
    }

    /// A controller that is up, with a queue of this depth on its first namespace.
    ///
    /// # Errors
    /// There is no namespace, or no queue.
    pub fn on(place: &Place, controller: Controller, depth: u32) -> Result<Self> {
        let namespace = *controller.namespaces().first().context("the controller has no namespace")?;
        let queue = controller.create_queue(QueueConfig::with_depth(depth))?;
        Ok(Self { queue, namespace, controller, clock: place.clock().clone() })
    }

    /// The same for another namespace.
    ///
    /// # Errors
    /// There is no such one.
    pub fn for_namespace(mut self, nsid: u32) -> Result<Self> {
        self.namespace = self.controller.namespace(Nsid(nsid))?;
        Ok(self)
    }

    /// A zeroed buffer that the controller can reach.
    ///
    /// # Errors
    /// There is no memory.
    pub fn buffer(&self, bytes: usize) -> Result<DmaBuf> {
        Ok(self.controller.space().allocate(bytes)?)
    }

    /// A buffer with this content.
    ///
    /// # Errors
    /// There is no memory.
    pub fn filled(&self, content: &[u8]) -> Result<DmaBuf> {
        let mut buffer = self.buffer(content.len())?;
        buffer.as_mut_slice().copy_from_slice(content);
        Ok(buffer)
    }

    /// Submits a request that must be accepted.
    ///
    /// # Errors
    /// It was not.
    pub fn submit(&mut self, request: Request) -> Result<()> {
        self.queue.submit(request).map(drop).map_err(|refused| anyhow!("refused: {}", refused.error))
    }

    /// Submits a request that must be refused, and answers why.
    ///
    /// # Errors
    /// It was accepted.
    pub fn refused(&mut self, request: Request) -> Result<SubmitError> {
        match self.queue.submit(request) {
            Err(Rejected { error, .. }) => Ok(error),
            Ok(_) => bail!("a request that must be refused was accepted"),
        }
    }

    /// Lets the device move, and takes what it has completed.
    pub fn turn(&mut self) -> Vec<Completion> {
        let mut ended = Vec::new();
        self.queue.poll(usize::MAX, |_, completion| ended.push(completion));
        if ended.is_empty() {
            self.controller.transport().relax(&self.clock);
        }
        ended
    }

    /// Waits until every request has ended.
    ///
    /// # Errors
    /// They do not.
    pub fn finish(&mut self) -> Result<Vec<Completion>> {
        let deadline = self.clock.deadline(PATIENCE);
        let mut ended = Vec::new();
        while self.queue.outstanding() > 0 {
            ended.extend(self.turn());
            ensure!(
                !deadline.passed(&self.clock),
                "{} requests have not ended after {PATIENCE:?} ({:?})",
                self.queue.outstanding(),
                self.queue.stats()
            );
        }
        Ok(ended)
    }

    /// Submits one request and waits for it; nothing else may be outstanding.
    ///
    /// # Errors
    /// It is refused, or does not end.
    pub fn run(&mut self, request: Request) -> Result<Completion> {
        self.submit(request)?;
        let mut ended = self.finish()?;
        ensure!(ended.len() == 1, "one request ended {} times", ended.len());
        ended.pop().context("one")
    }

    /// The same for a request that must succeed; answers its buffer.
    ///
    /// # Errors
    /// As [`Rig::run`], or it fails.
    pub fn succeed(&mut self, request: Request) -> Result<Buffer> {
        let completion = self.run(request)?;
        completion.result?;
        Ok(completion.buffer)
    }

    /// Writes `content` from `lba` on.
    ///
    /// # Errors
    /// It fails.
    pub fn write(&mut self, lba: u64, content: &[u8]) -> Result<()> {
        let buffer = self.filled(content)?;
        self.succeed(Request::write(&self.namespace, Lba(lba), buffer)).map(drop)
    }

    /// Reads `bytes` from `lba` on, into memory that was something else before.
    ///
    /// # Errors
    /// It fails.
    pub fn read(&mut self, lba: u64, bytes: usize) -> Result<Vec<u8>> {
        let mut buffer = self.buffer(bytes)?;
        buffer.as_mut_slice().fill(0xa5);
        let buffer = self.succeed(Request::read(&self.namespace, Lba(lba), buffer))?;
        let buffer = buffer.into_dma_buf().context("the buffer did not come back")?;
        Ok(buffer.as_slice().to_vec())
    }

    /// Checks that `content` is what is stored from `lba` on.
    ///
    /// # Errors
    /// It is not.
    pub fn expect(&mut self, lba: u64, content: &[u8]) -> Result<()> {
        let found = self.read(lba, content.len())?;
        match difference(&found, content) {
            None => Ok(()),
            Some(how) => bail!("from block {lba} on: {how}"),
        }
    }

    /// Writes and reads some blocks all over the namespace, with many requests outstanding: proof that all is
    /// well.
    ///
    /// # Errors
    /// It is not.
    pub fn exercise(&mut self, requests: u64) -> Result<()> {
        let block_bytes = self.namespace.block_bytes() as usize;
        let spread = self.namespace.blocks() / requests.max(1);
        ensure!(spread > 0, "more requests than blocks");
        let mut random = Random::new(requests);
        let base = random.next_u64();
        let content = |index: u64| crate::bytes::pattern(base ^ index, block_bytes);
        for index in 0..requests {
            let request = Request::write(&self.namespace, Lba(index * spread), self.filled(&content(index))?);
            self.accept(request.user_data(index), |_| Ok(()))?;
        }
        self.finish_with(|_| Ok(()))?;
        let check = |completion: Completion| {
            let index = completion.user_data;
            let buffer = completion.buffer.into_dma_buf().context("the buffer did not come back")?;
            match difference(buffer.as_slice(), &content(index)) {
                None => Ok(()),
                Some(how) => bail!("block {}: {how}", index * spread),
            }
        };
        for index in 0..requests {
            let request = Request::read(&self.namespace, Lba(index * spread), self.buffer(block_bytes)?);
            self.accept(request.user_data(index), check)?;
        }
        self.finish_with(check)
    }

    /// Submits a request, and waits for room if need be; what ends meanwhile must have succeeded.
    ///
    /// # Errors
    /// It is refused for another reason, or something failed.
    pub fn accept(
        &mut self,
        mut request: Request,
        mut check: impl FnMut(Completion) -> Result<()>,
    ) -> Result<()> {
        let deadline = self.clock.deadline(PATIENCE);
        loop {
            match self.queue.submit(request) {
                Ok(_) => return Ok(()),
                Err(Rejected { error: SubmitError::QueueFull, request: back }) => request = back,
                Err(Rejected { error, .. }) => bail!("refused: {error}"),
            }
            ensure!(!deadline.passed(&self.clock), "the queue stays full");
            self.turn().into_iter().try_for_each(|it| well(it, &mut check))?;
        }
    }

    fn finish_with(&mut self, mut check: impl FnMut(Completion) -> Result<()>) -> Result<()> {
        self.finish()?.into_iter().try_for_each(|it| well(it, &mut check))
    }

    /// Closes queue and controller. Nothing may be outstanding.
    ///
    /// # Errors
    /// They do not close, or something was outstanding.
    pub fn close(self) -> Result<()> {
        let mut left = 0;
        self.queue.close(|_| left += 1)?;
        ensure!(left == 0, "{left} requests were outstanding");
        Ok(self.controller.close()?)
    }
}

fn well(completion: Completion, check: &mut impl FnMut(Completion) -> Result<()>) -> Result<()> {
    completion.result?;
    check(completion)
}

/// How long requests may take: a device that needs longer is stuck.
const PATIENCE: Duration = Duration::from_secs(30);
