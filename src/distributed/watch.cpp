#include "distributed/watch.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <exception>
#include <utility>

namespace vlmtrain::distributed {

namespace {

using namespace std::chrono_literals;

constexpr auto kBeat = 500ms;
constexpr auto kBeatAtTheEnd = 10ms;
/// Where a connection broke, who was not heard of for so long is the one.
constexpr auto kSilenceWhereBroken = 3s;
/// Rank 0 takes as long to find out who is silent, and the word some beats to come round.
constexpr auto kToExplain = 16s;
/// What a rank may take to come to its end that knows of a failure, beside what it is writing.
constexpr auto kToEnd = 15s;
/// What a rank may take to come to an end by itself once it knows of a failure, or while it does not.
constexpr auto kToNotice = 4s;
constexpr auto kToSayGoodbye = 5s;
/// That rank 0 waits for the others to hear of a failure; a lost one does not.
constexpr auto kToHear = 2s;

constexpr const char* kFailure = "failure";
/// A connection between two ranks broke: whose does not matter, one of them is silent.
constexpr const char* kBroken = "broken";

std::string beat_of(int64_t rank) {
  return fmt::format("beat/{}", rank);
}

std::string done_of(int64_t rank) {
  return fmt::format("done/{}", rank);
}

/// Who has seen that all are done: rank 0 goes last, for it holds what the others ask.
std::string gone_of(int64_t rank) {
  return fmt::format("gone/{}", rank);
}

/// Who has heard of the failure.
std::string heard_of(int64_t rank) {
  return fmt::format("heard/{}", rank);
}

std::string text_of(const Failure& failure) {
  return nlohmann::json{{"rank", failure.rank}, {"code", failure.code}, {"reason", failure.reason}}.dump(
      -1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Failure failure_in(const std::string& text) {
  const auto json = nlohmann::json::parse(text);
  return {.rank = json.at("rank"), .code = json.at("code").get<ExitCode>(), .reason = json.at("reason")};
}

}  // namespace

Watch::Watch(const Launch& launch, RanksSettings settings, std::vector<std::string> names)
    : launch_(launch), settings_(std::move(settings)), names_(std::move(names)), heard_(names_.size()) {
  for (Heard& heard : heard_) heard.at = Clock::now();
  talk_ = std::thread([this] { talk(); });
  guard_ = std::jthread([this] { guard(); });
}

Watch::~Watch() {
  bool is_answered = true;
  {
    std::unique_lock lock(mutex_);
    is_done_ = true;
    changed_.notify_all();
    const auto is_over = [this] { return failure_ || are_all_done_; };
    changed_.wait_for(lock, kToSayGoodbye, is_over);
    is_answered = Clock::now() - talked_ < kToSayGoodbye;
  }
  guard_.join();
  if (is_answered) {
    talk_.join();
  } else {
    // It waits for a machine that does not answer. The process is at its end.
    talk_.detach();
  }
}

void Watch::tell(Failure failure) {
  std::unique_lock lock(mutex_);
  is_known_ = true;
  if (failure_) return;
  own_ = std::move(failure);
  changed_.notify_all();
  changed_.wait_for(lock, kSilenceWhereBroken, [this] { return is_told_ || failure_; });
}

std::optional<Failure> Watch::await_failure() {
  std::unique_lock lock(mutex_);
  is_broken_ = true;
  is_known_ = true;
  changed_.wait_for(lock, kToExplain, [this] { return failure_.has_value(); });
  return failure_;
}

bool Watch::has_lost_first() {
  const std::lock_guard lock(mutex_);
  return has_lost_first_;
}

void Watch::lose_first() {
  has_lost_first_ = true;
  if (!failure_) failure_ = Failure{.rank = 0, .code = ExitCode::kFailed, .reason = lost_words(0)};
  changed_.notify_all();
}

void Watch::settle(const Failure& failure) {
  const std::lock_guard lock(mutex_);
  if (failure_) return;
  failure_ = failure;
  hear_until_ = Clock::now() + kToHear;
  changed_.notify_all();
}

Watch::Clock::duration Watch::silence() const {
  return is_broken_ ? std::min<Clock::duration>(kSilenceWhereBroken, settings_.silence) : settings_.silence;
}

std::string Watch::lost_words(int64_t rank) const {
  const std::string& name = names_[static_cast<size_t>(rank)];
  if (is_broken_) return fmt::format("{} is gone: it was killed, or its machine or network failed", name);
  return fmt::format("{} has not been heard of for {:.0f} s: it was stopped, or its machine or network failed", name,
                     std::chrono::duration<double>(silence()).count());
}

/// The one thread that speaks to rank 0.
void Watch::talk() {
  try {
    SharedTexts texts(launch_, /*is_server=*/false, settings_.to_meet);
    for (int64_t beat = 1;; ++beat) {
      exchange(texts, beat);
      std::unique_lock lock(mutex_);
      talked_ = Clock::now();
      changed_.notify_all();
      if (are_all_done_ || Clock::now() > hear_until_) return;
      const auto pause = is_done_ || failure_ ? kBeatAtTheEnd : kBeat;
      changed_.wait_for(lock, pause, [this, is_done = is_done_] { return (own_ && !is_told_) || is_done_ != is_done; });
    }
  } catch (const std::exception&) {
    const std::unique_lock lock(mutex_);
    const bool is_at_its_end = is_done_;
    if (is_at_its_end) {
      are_all_done_ = true;  // rank 0 went as soon as all had said so
      changed_.notify_all();
      return;
    }
    is_broken_ = true;
    lose_first();
  }
}

void Watch::exchange(SharedTexts& texts, int64_t beat) {
  texts.set(beat_of(launch_.rank), std::to_string(beat));
  std::optional<Failure> own;
  bool is_done = false;
  {
    const std::lock_guard lock(mutex_);
    own = own_;
    is_done = is_done_;
  }
  if (own) texts.set_first(kFailure, text_of(*own));
  exchange_broken(texts);
  if (!texts.has({kFailure}) && launch_.rank == 0) look_for_lost(texts);
  const bool is_failed = texts.has({kFailure});
  if (is_failed) settle(failure_in(texts.get({kFailure}).front()));
  const bool are_all_done = is_failed ? tell_of_hearing(texts) : is_done && say_goodbye(texts);
  const std::lock_guard lock(mutex_);
  is_told_ = own.has_value();
  are_all_done_ = are_all_done;
}

/// Only two ranks see it; rank 0 is to know.
void Watch::exchange_broken(SharedTexts& texts) {
  bool is_broken = false;
  {
    const std::lock_guard lock(mutex_);
    is_broken = is_broken_;
  }
  if (is_broken) {
    texts.set(kBroken, "");
  } else if (launch_.rank == 0 && texts.has({kBroken})) {
    const std::lock_guard lock(mutex_);
    is_broken_ = true;
  }
}

bool Watch::say_goodbye(SharedTexts& texts) const {
  texts.set(done_of(launch_.rank), "");
  std::vector<std::string> done, gone;
  for (int64_t rank = 0; rank < launch_.world_size; ++rank) {
    done.push_back(done_of(rank));
    if (rank != 0) gone.push_back(gone_of(rank));
  }
  if (!texts.has(done)) return false;
  if (launch_.rank == 0) return texts.has(gone);
  texts.set(gone_of(launch_.rank), "");
  return true;
}

bool Watch::tell_of_hearing(SharedTexts& texts) const {
  texts.set(heard_of(launch_.rank), "");
  if (launch_.rank != 0) return true;
  std::vector<std::string> heard;
  for (int64_t rank = 0; rank < launch_.world_size; ++rank) heard.push_back(heard_of(rank));
  return texts.has(heard);
}

/// Names the one that is silent longest.
void Watch::look_for_lost(SharedTexts& texts) {
  const auto now = Clock::now();
  int64_t longest = 0;
  for (int64_t rank = 1; rank < launch_.world_size; ++rank) {
    Heard& heard = heard_[static_cast<size_t>(rank)];
    const std::string name = beat_of(rank);
    const std::string beat = texts.has({name}) ? texts.get({name}).front() : std::string();
    if (beat != heard.beat || texts.has({done_of(rank)})) heard = {.beat = beat, .at = now};
    if (longest == 0 || heard.at < heard_[static_cast<size_t>(longest)].at) longest = rank;
  }
  std::string reason;
  {
    const std::lock_guard lock(mutex_);
    if (now - heard_[static_cast<size_t>(longest)].at > silence()) reason = lost_words(longest);
  }
  if (reason.empty()) return;
  texts.set_first(kFailure, text_of({.rank = longest, .code = ExitCode::kFailed, .reason = reason}));
}

/// Sees that the talking thread gets answers, and ends a process that does not come to hear of a failure.
void Watch::guard() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait_for(lock, kBeat);
    if (is_done_ && (failure_ || are_all_done_ || Clock::now() - talked_ >= kToSayGoodbye)) return;
    if (!failure_ && !is_done_ && launch_.rank != 0 && Clock::now() - talked_ > silence()) {
      lose_first();
    }
    if (failure_) break;
  }
  const auto start = Clock::now();
  // It may hang although it knows: in a call that waits for a device, which waits for the lost rank.
  const auto deadline = [&] { return start + (is_known_ ? kToEnd : kToNotice); };
  while (!is_done_ && Clock::now() < deadline()) changed_.wait_until(lock, deadline());
  if (is_done_) return;
  const Failure failure = *failure_;
  lock.unlock();
  if (settings_.on_stuck) settings_.on_stuck(failure);
}

}  // namespace vlmtrain::distributed
