//! A transport between threads of one process: a box of messages for each pair of ranks.

use flashattn::cp::{Arrival, Failure, Incoming, Outgoing, Transport};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

type Boxes = HashMap<(usize, usize), VecDeque<(u64, Vec<u8>)>>;

/// What ranks share.
#[derive(Default)]
pub struct Room {
    boxes: Mutex<Boxes>,
    news: Condvar,
}

/// A rank's place in it.
pub struct Seat {
    pub room: Arc<Room>,
    pub rank: usize,
    pub ranks: usize,
    pub groups: u64,
}

impl Seat {
    /// All ranks of a room of their own.
    pub fn all(ranks: usize) -> Vec<Seat> {
        let room = Arc::new(Room::default());
        (0..ranks).map(|rank| Seat { room: room.clone(), rank, ranks, groups: 0 }).collect()
    }
}

impl Transport for Seat {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn start(&mut self, outgoing: &[Outgoing<'_>], _: &[Incoming]) -> Result<u64, Failure> {
        let mut boxes = self.room.boxes.lock().unwrap();
        for message in outgoing {
            boxes.entry((self.rank, message.peer)).or_default().push_back((message.tag, message.bytes.to_vec()));
        }
        self.room.news.notify_all();
        self.groups += 1;
        Ok(self.groups)
    }

    fn wait(&mut self, _: u64, arrivals: &mut [Arrival<'_>], limit: Option<Duration>) -> Result<(), Failure> {
        let end = limit.map(|limit| Instant::now() + limit);
        let mut boxes = self.room.boxes.lock().unwrap();
        for arrival in arrivals {
            let (tag, bytes) = loop {
                if let Some(message) = boxes.get_mut(&(arrival.peer, self.rank)).and_then(VecDeque::pop_front) {
                    break message;
                }
                let left = end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
                if left.is_zero() {
                    return Err(Failure::TimedOut);
                }
                boxes = self.room.news.wait_timeout(boxes, left.min(Duration::from_secs(1))).unwrap().0;
            };
            if tag != arrival.tag || bytes.len() != arrival.bytes.len() {
                return Err(Failure::PeerFailed);
            }
            arrival.bytes.copy_from_slice(&bytes);
        }
        Ok(())
    }
}
