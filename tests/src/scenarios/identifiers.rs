//! Command identifiers that several queue pairs share.

use anyhow::{Context, Result, ensure};
use doorbell::{
    Blocks, Completion, Controller, ControllerError, FairShare, Lba, Namespace, Nsid, QueueConfig, QueuePair,
    Request, SharedIds, SubmitError,
};

use crate::Place;
use crate::scenario::scenarios;

scenarios! {
    Nothing:
        queues_that_share_identifiers_hold_as_many_requests_as_there_are,
        a_released_identifier_goes_to_the_queue_that_has_waited_longest,
        a_queue_that_asks_no_more_leaves_the_line,
        a_callback_that_submits_again_leaves_its_identifier_to_whoever_waits,
        a_depth_beside_shared_identifiers_is_refused;
}

/// Queue pairs of one controller that share identifiers.
struct Sharers<'a> {
    place: &'a Place,
    controller: Controller,
    namespace: Namespace,
    ids: SharedIds,
    queues: Vec<QueuePair>,
}

impl<'a> Sharers<'a> {
    fn new(place: &'a mut Place, ids: u16, queues: u16) -> Result<Self> {
        let controller = place.controller()?;
        let namespace = controller.namespace(Nsid(1))?;
        let ids = SharedIds::new(ids, queues, FairShare::Off)?;
        let config = sharing(&ids);
        let queues = (0..queues).map(|_| controller.create_queue(config.clone()));
        let queues = queues.collect::<Result<Vec<_>, _>>()?;
        Ok(Self { place, controller, namespace, ids, queues })
    }

    /// Submits a write of zeroes. Says whether it was accepted; the only other answer is that there is no
    /// room.
    fn submit(&mut self, queue: usize) -> Result<bool> {
        match self.queues[queue].submit(Request::write_zeroes(&self.namespace, Lba(0), Blocks(1))) {
            Ok(_) => Ok(true),
            Err(refused) if refused.error == SubmitError::QueueFull => Ok(false),
            Err(refused) => Err(refused.error.into()),
        }
    }

    /// Polls a queue until it has handed a completion over.
    fn reap_one(&mut self, queue: usize) -> Result<Completion> {
        let deadline = self.place.clock().deadline(std::time::Duration::from_secs(5));
        let mut ended = None;
        while ended.is_none() && !deadline.passed(self.place.clock()) {
            self.queues[queue].poll(1, |_, completion| ended = Some(completion));
            self.controller.transport().relax(self.place.clock());
        }
        ended.context("a request did not end")
    }

    fn close(self) -> Result<()> {
        for queue in self.queues {
            queue.close(|_| ())?;
        }
        ensure!(self.ids.active() == 0, "{} identifiers are lost", self.ids.active());
        Ok(self.controller.close()?)
    }
}

fn sharing(ids: &SharedIds) -> QueueConfig {
    let mut config = QueueConfig::default();
    config.shared_ids = Some(ids.clone());
    config
}

fn queues_that_share_identifiers_hold_as_many_requests_as_there_are(place: &mut Place) -> Result<()> {
    let mut sharers = Sharers::new(place, 7, 3)?;
    ensure!(sharers.queues.iter().all(|queue| queue.depth() == 7), "the depth is the number of identifiers");
    for round in 0..20 {
        let mut accepted = [0_usize; 3];
        for queue in [0, 1, 2, 0, 1, 2, 0] {
            ensure!(sharers.submit(queue)?, "round {round}: an identifier is free");
            accepted[queue] += 1;
        }
        ensure!(sharers.ids.active() == 7, "{} are active", sharers.ids.active());
        let outstanding: Vec<_> = sharers.queues.iter().map(QueuePair::outstanding).collect();
        ensure!(outstanding == accepted, "{outstanding:?} instead of {accepted:?}");
        for (queue, count) in accepted.into_iter().enumerate() {
            for _ in 0..count {
                ensure!(sharers.reap_one(queue)?.result.is_ok(), "a request failed");
            }
        }
        ensure!(sharers.ids.active() == 0, "{} are active", sharers.ids.active());
    }
    sharers.close()
}

fn a_released_identifier_goes_to_the_queue_that_has_waited_longest(place: &mut Place) -> Result<()> {
    let mut sharers = Sharers::new(place, 2, 3)?;
    ensure!(sharers.submit(0)? && sharers.submit(0)?, "both are free");
    ensure!(!sharers.submit(2)? && !sharers.submit(1)?, "none is free");
    for next in [2, 1] {
        sharers.reap_one(0)?;
        ensure!(!sharers.submit(0)?, "the queue that had them took the one that others wait for");
        ensure!(sharers.submit(next)?, "queue {next} has waited longest");
    }
    sharers.reap_one(2)?;
    ensure!(sharers.submit(0)?, "nobody else waits");
    sharers.reap_one(0)?;
    sharers.reap_one(1)?;
    sharers.close()
}

fn a_queue_that_asks_no_more_leaves_the_line(place: &mut Place) -> Result<()> {
    let mut sharers = Sharers::new(place, 1, 2)?;
    ensure!(sharers.submit(0)? && !sharers.submit(1)?, "there is one identifier");
    // It is polled, finds nothing, and does not ask again.
    for _ in 0..1000 {
        sharers.queues[1].poll(8, |_, _| ());
    }
    sharers.reap_one(0)?;
    ensure!(sharers.submit(0)?, "the only queue that wants the identifier does not get it");
    sharers.reap_one(0)?;
    sharers.close()
}

fn a_callback_that_submits_again_leaves_its_identifier_to_whoever_waits(place: &mut Place) -> Result<()> {
    let mut sharers = Sharers::new(place, 1, 2)?;
    ensure!(sharers.submit(0)?, "the identifier is free");
    let namespace = sharers.namespace;
    let mut kept = 0;
    for waits in [false, true] {
        if waits {
            ensure!(!sharers.submit(1)?, "the identifier is in use");
        }
        let deadline = sharers.place.clock().deadline(std::time::Duration::from_secs(5));
        let mut ended = 0;
        while ended == 0 && !deadline.passed(sharers.place.clock()) {
            ended = sharers.queues[0].poll(1, |plug, _| {
                let again = Request::write_zeroes(&namespace, Lba(0), Blocks(1));
                kept += usize::from(plug.submit(again).is_ok());
            });
            sharers.controller.transport().relax(sharers.place.clock());
        }
        ensure!(ended == 1, "a request did not end");
        ensure!(kept == 1, "{kept} of the first request's and the second's callbacks got the identifier");
    }
    ensure!(sharers.submit(1)?, "the queue that waits gets the identifier");
    sharers.reap_one(1)?;
    sharers.close()
}

fn a_depth_beside_shared_identifiers_is_refused(place: &mut Place) -> Result<()> {
    let controller = place.controller()?;
    let ids = SharedIds::new(8, 1, FairShare::Off)?;
    let config = |depth| {
        let mut config = sharing(&ids);
        config.depth = depth;
        config
    };
    let refused = controller.create_queue(config(Some(9))).err().context("another depth was accepted")?;
    ensure!(matches!(refused, ControllerError::SharedDepth { asked: 9, ids: 8 }), "{refused}");
    let queue = controller.create_queue(config(Some(8)))?;
    let refused = controller.create_queue(config(None)).err().context("a second lane of one was accepted")?;
    ensure!(matches!(refused, ControllerError::SharedIds(_)), "{refused}");
    queue.close(|_| ())?;
    Ok(controller.close()?)
}
