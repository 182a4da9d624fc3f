#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "distributed/store.h"
#include "vlmtrain/distributed/ranks.h"

namespace vlmtrain::distributed {

/// Tells the other ranks that this one is there, and finds out whether they are, on threads of its own: rank 0 looks at
/// all of them, the others at rank 0, and the first failure is everybody's.
class Watch {
 public:
  /// `names`: of the ranks, for what is said of a lost one.
  Watch(const Launch& launch, RanksSettings settings, std::vector<std::string> names);
  /// Without a failure: tells that this rank is done, and where it is rank 0 waits until all others are.
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  /// Of this rank. Returns when the others can know it, or cannot.
  void tell(Failure failure);

  bool has_lost_first();

  /// The first failure, for a caller whose connection to some rank broke; nothing where none is known in time.
  std::optional<Failure> await_failure();

 private:
  using Clock = std::chrono::steady_clock;
  struct Heard {
    std::string beat;
    Clock::time_point at;
  };

  void talk();
  void exchange(SharedTexts& texts, int64_t beat);
  /// Whether this rank may go.
  bool say_goodbye(SharedTexts& texts) const;
  /// The same, where there was a failure.
  bool tell_of_hearing(SharedTexts& texts) const;
  void look_for_lost(SharedTexts& texts);
  void guard();
  void settle(const Failure& failure);
  Clock::duration silence() const;
  std::string lost_words(int64_t rank) const;
  void exchange_broken(SharedTexts& texts);
  void lose_first();  // REQUIRES: mutex_ is held

  const Launch launch_;
  const RanksSettings settings_;
  const std::vector<std::string> names_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::optional<Failure> failure_;
  std::optional<Failure> own_;  // to be told
  bool is_told_ = false;
  bool has_lost_first_ = false;
  bool is_broken_ = false;  // a connection between ranks: who is silent now is not waited for long
  bool is_known_ = false;   // to this rank's own thread
  bool is_done_ = false;
  bool are_all_done_ = false;
  Clock::time_point hear_until_ = Clock::time_point::max();  // where there was a failure
  Clock::time_point talked_ = Clock::now();
  std::vector<Heard> heard_;  // by rank; of the talking thread
  std::jthread guard_;
  std::thread talk_;  // left behind where rank 0 does not answer
};

}  // namespace vlmtrain::distributed
