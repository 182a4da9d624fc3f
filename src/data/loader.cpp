#include "vlmtrain/data/loader.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <exception>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "data/bad_sample_log.h"
#include "data/problem.h"
#include "data/units_ahead.h"
#include "vlmtrain/base/bytes.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/rng.h"
#include "vlmtrain/data/sample_stream.h"

namespace vlmtrain::data {

/// A unit whose samples are made.
struct MadeUnit {
  DrawnUnit drawn;
  std::vector<Sample> samples;
};

class Loader::Impl {
 public:
  Impl(const io::Records& records, const SampleProcessor& processor, const DrawOrder& order, LoaderSettings settings,
       Cursor start, Ledger& ledger)
      : records_(records),
        order_(order),
        settings_(settings),
        cursor_(start.lanes.empty() ? order.start() : std::move(start)),
        ledger_(ledger) {
    check_start();
    lanes_.reserve(cursor_.lanes.size());
    for (int64_t lane = 0; lane < order.lanes(); ++lane) {
      const Place place = cursor_.lanes[static_cast<size_t>(lane)];
      // What lies before a resumed epoch's cut was not seen here.
      lanes_.push_back({.walk = LaneWalk(order, lane, place),
                        .first = place,
                        .has_usable = place.position > 0,
                        .made = {},
                        .held_back = {}});
    }
    ahead_ = std::make_unique<UnitsAhead>(order, cursor_, settings.global_batch_size);
    stream_.emplace(
        [this] { return std::optional{ahead_->next()}; },
        [this, &processor, dropped = dropped_samples()](int64_t index) {
          return dropped[static_cast<size_t>(index)] ? Sample() : make_sample(processor, records_.at(index), index);
        },
        SampleStream::Settings{
            .workers = settings.num_workers, .ahead = samples_ahead(), .bytes_ahead = settings.bytes_ahead});
  }

  ~Impl() { summarize(); }

  GlobalBatch next() {
    GlobalBatch batch;
    batch.start = cursor_;
    fill(batch);
    batch.next = cursor_ = with_next_batch(std::move(cursor_));
    return batch;
  }

  void refill(GlobalBatch& batch) {
    const int64_t batches = cursor_.batches;
    for (const int64_t lane : lanes_that_lack(batch)) {
      ahead_->want_another(lane);
      add(batch, draw(lane, batch.wait_seconds));
    }
    fill(batch);
    cursor_.batches = batches;
    batch.next = cursor_;
  }

  void put_back(GlobalBatch batch) {
    std::vector<MadeUnit> units;
    units.reserve(batch.units.size());
    for (DrawnUnit& unit : batch.units) units.push_back({.drawn = unit, .samples = {}});
    for (Sample& sample : batch.samples) {
      units[static_cast<size_t>(batch.unit_of.at(sample.seed))].samples.push_back(std::move(sample));
    }
    for (auto unit = units.rbegin(); unit != units.rend(); ++unit) {
      if (!unit->samples.empty()) lane(unit->drawn.lane).held_back.push_front(std::move(*unit));
    }
    cursor_ = std::move(batch.start);
  }

 private:
  struct LaneState {
    LaneWalk walk;
    Place first;
    bool has_usable = false;         // the epoch that is under way
    std::deque<StreamItem> made;     // that the stream gave before they were asked for
    std::deque<MadeUnit> held_back;  // what comes before the walk's next, in order
  };

  LaneState& lane(int64_t lane) { return lanes_[static_cast<size_t>(lane)]; }

  /// Each place of each epoch has its own; those of a data set of one lane are what they were before there were lanes.
  uint64_t draw_seed(int64_t lane, Place place) const {
    const auto epoch = static_cast<uint64_t>(place.epoch), position = static_cast<uint64_t>(place.position);
    if (lane == 0) return stream_seed(order_.settings().seed, "sample", {epoch, position});
    return stream_seed(order_.settings().seed, "sample", {epoch, position, static_cast<uint64_t>(lane)});
  }

  /// Whether a sample was dropped before it is asked for, by index; for the threads, which cannot read the ledger.
  std::vector<char> dropped_samples() const {
    std::vector<char> dropped(static_cast<size_t>(records_.size()));
    for (size_t i = 0; i < dropped.size(); ++i) {
      dropped[i] = ledger_.status(static_cast<int64_t>(i)) == SampleStatus::kDropped ? 1 : 0;
    }
    return dropped;
  }

  void check_start() const {
    VLMTRAIN_CHECK(ledger_.samples() == records_.size() && order_.samples() == records_.size(),
                   "a ledger of {} samples and an order of {} for {} records", ledger_.samples(), order_.samples(),
                   records_.size());
    VLMTRAIN_CHECK(settings_.global_batch_size >= 1, "a global batch of {}", settings_.global_batch_size);
    if (records_.size() == 0) {
      throw data_error("{}: holds no samples; name another file in data.train", ledger_.dataset());
    }
    order_.check(cursor_, ledger_.dataset());
  }

  static Cursor with_next_batch(Cursor cursor) {
    ++cursor.batches;
    return cursor;
  }

  void tell_once_of_shrunk(const Sample& sample) {
    if (told_of_shrunk_ || !sample.shrunk) return;
    told_of_shrunk_ = true;
    spdlog::info(
        "sample {} is longer than data.max_length: its images and videos lose pixels, {} tokens become {}; ledger.json "
        "names each such sample, and data.on_too_long says what becomes of them",
        sample.id, sample.shrunk->tokens, sample.shrunk->tokens_left);
  }

  void warn_once_if_held_back() {
    if (warned_of_bytes_ || !stream_->was_held_back()) return;
    warned_of_bytes_ = true;
    spdlog::warn(
        "decoded samples wait in {} of host memory and no more, so that fewer than {} are ready ahead; more memory for "
        "the job, or a lower data.image_max_pixels, makes room",
        format_bytes(settings_.bytes_ahead), samples_ahead());
  }

  int64_t samples_ahead() const {
    if (settings_.samples_ahead > 0) return settings_.samples_ahead;
    double of_unit = 1;
    for (const LaneState& lane : lanes_) of_unit = std::max(of_unit, lane.walk.samples_of_unit());
    return std::llround(std::ceil(2 * of_unit * static_cast<double>(settings_.global_batch_size)));
  }

  /// Draws until the batch is full.
  void fill(GlobalBatch& batch) {
    int64_t tokens = tokens_of(batch.samples);
    auto units = std::ranges::count(batch.units, false, &DrawnUnit::is_replaced);
    for (; !is_full(units, tokens); ++units) {
      std::vector<double> due_before = cursor_.due;
      const int64_t chosen = order_.chooser().choose(cursor_);
      MadeUnit unit = draw(chosen, batch.wait_seconds);
      const int64_t own = tokens_of(unit.samples);
      if (is_nearer_without(batch, tokens, own)) {
        cursor_.due = std::move(due_before);
        lane(chosen).held_back.push_front(std::move(unit));
        break;
      }
      tokens += own;
      add(batch, std::move(unit));
    }
    batch.label_tokens = 0;
    for (const Sample& sample : batch.samples) batch.label_tokens += sample.label_tokens();
    warn_once_if_held_back();
  }

  void add(GlobalBatch& batch, MadeUnit unit) {
    cursor_.lanes[static_cast<size_t>(unit.drawn.lane)] = unit.drawn.behind;
    for (Sample& sample : unit.samples) {
      batch.unit_of[sample.seed] = std::ssize(batch.units);
      batch.samples.push_back(std::move(sample));
    }
    batch.units.push_back(unit.drawn);
  }

  /// Those of the units that are gone, which are taken to be replaced from here on.
  static std::vector<int64_t> lanes_that_lack(GlobalBatch& batch) {
    std::vector<char> is_there(batch.units.size());
    for (const Sample& sample : batch.samples) is_there[static_cast<size_t>(batch.unit_of.at(sample.seed))] = 1;
    std::vector<int64_t> lanes;
    for (size_t unit = 0; unit < is_there.size(); ++unit) {
      if (is_there[unit] != 0 || batch.units[unit].is_replaced) continue;
      batch.units[unit].is_replaced = true;
      lanes.push_back(batch.units[unit].lane);
    }
    return lanes;
  }

  static int64_t tokens_of(const std::vector<Sample>& samples) {
    int64_t tokens = 0;
    for (const Sample& sample : samples) tokens += sample.tokens();
    return tokens;
  }

  bool is_full(int64_t units, int64_t tokens) const {
    return units >= settings_.global_batch_size ||
           (settings_.global_batch_tokens && tokens >= *settings_.global_batch_tokens);
  }

  bool is_nearer_without(const GlobalBatch& batch, int64_t tokens, int64_t tokens_of_unit) const {
    if (!settings_.global_batch_tokens || batch.samples.empty()) return false;
    const int64_t goal = *settings_.global_batch_tokens;
    return tokens + tokens_of_unit - goal > goal - tokens;
  }

  /// The next unit of a lane that holds a usable sample, with those.
  MadeUnit draw(int64_t number, double& wait_seconds) {
    LaneState& lane = this->lane(number);
    while (true) {
      MadeUnit unit;
      if (lane.held_back.empty()) {
        unit = make(number, wait_seconds);
      } else {
        unit = std::move(lane.held_back.front());
        lane.held_back.pop_front();
        std::erase_if(unit.samples, [this](const Sample& sample) { return is_dropped(sample.index); });
      }
      if (!unit.samples.empty()) return unit;
      ahead_->want_another(number);
    }
  }

  bool is_dropped(int64_t index) const { return ledger_.status(index) == SampleStatus::kDropped; }

  MadeUnit make(int64_t number, double& wait_seconds) {
    LaneState& lane = this->lane(number);
    const LaneWalk::Unit unit = lane.walk.next();
    if (unit.begin.position == 0) begin_epoch(number, unit.begin);
    MadeUnit made{.drawn = {.lane = number, .begin = unit.begin, .behind = unit.behind}, .samples = {}};
    Place place = unit.begin;
    for (const int64_t index : unit.samples) {
      StreamItem item = take(number, wait_seconds);
      VLMTRAIN_CHECK(item.index == index, "the stream gave sample {} for {}", item.index, index);
      const uint64_t seed = draw_seed(number, place);
      ++place.position;
      if (is_dropped(index)) continue;
      if (item.error) {
        settle_bad_sample(index, item.error);
        continue;
      }
      lane.has_usable = true;
      item.sample.seed = seed;
      tell_once_of_shrunk(item.sample);
      made.samples.push_back(std::move(item.sample));
    }
    return made;
  }

  /// The next of a lane that the threads make.
  StreamItem take(int64_t number, double& wait_seconds) {
    std::deque<StreamItem>& made = lane(number).made;
    while (made.empty()) {
      const auto begin = std::chrono::steady_clock::now();
      auto item = stream_->next();
      wait_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      VLMTRAIN_CHECK(item.has_value(), "the endless sequence ended");
      lane(order_.lane_of(item->index)).made.push_back(std::move(*item));
    }
    StreamItem item = std::move(made.front());
    made.pop_front();
    return item;
  }

  void settle_bad_sample(int64_t index, const std::exception_ptr& error) {
    const Problem problem = describe(error);
    if (settle(index, problem)) return;
    if (problem.skippable) {
      throw data_error("{}, {}: {}; or go on without such samples: data.on_bad_sample=skip", ledger_.dataset(),
                       records_.text_at(index).place, problem.message);
    }
    spdlog::error("{} stopped the run: {}", name(index), problem.message);
    std::rethrow_exception(error);
  }

  /// Enters the problem in the ledger; true if the run goes on without the sample.
  bool settle(int64_t index, const Problem& problem) {
    const std::string id = records_.text_at(index).id;
    const bool fails = settings_.on_bad_sample == BadSamplePolicy::kFail && !problem.is_dropped;
    if (!problem.skippable || fails) {
      ledger_.mark_failed(index, id, problem.reason, problem.message);
      return false;
    }
    const bool known = ledger_.status(index) == SampleStatus::kDropped;  // in an earlier epoch, or before a resume
    ledger_.mark_dropped(index, id, problem.reason, problem.message);
    if (!known) log_.warn(problem.message);
    return true;
  }

  /// Before the first sample of a lane's epoch.
  void begin_epoch(int64_t number, Place place) {
    LaneState& lane = this->lane(number);
    if (place == lane.first) return;
    summarize();
    if (!lane.has_usable) {
      const Lane& samples = order_.lane(number);
      throw data_error("{}: none of the {} samples{} can be used; ledger.json names each with the reason",
                       ledger_.dataset(), samples.samples.size(), order_.lanes() == 1 ? "" : " of " + samples.name);
    }
    lane.has_usable = false;
  }

  void summarize() { log_.summarize(ledger_.count(SampleStatus::kDropped), ledger_.samples()); }

  std::string name(int64_t index) const {
    const io::Record record = records_.text_at(index);
    return fmt::format("{}: sample {} ({})", ledger_.dataset(), record.id, record.place);
  }

  const io::Records& records_;
  const DrawOrder& order_;
  LoaderSettings settings_;
  Cursor cursor_;  // behind the last unit that was handed out
  Ledger& ledger_;
  BadSampleLog log_;
  bool warned_of_bytes_ = false;
  bool told_of_shrunk_ = false;
  std::vector<LaneState> lanes_;
  std::unique_ptr<UnitsAhead> ahead_;
  std::optional<SampleStream> stream_;  // last: its threads ask the ones above
};

Loader::Loader(const io::Records& records, const SampleProcessor& processor, const DrawOrder& order,
               LoaderSettings settings, Cursor start, Ledger& ledger)
    : impl_(std::make_unique<Impl>(records, processor, order, settings, std::move(start), ledger)) {}

Loader::~Loader() = default;

GlobalBatch Loader::next() {
  return impl_->next();
}

void Loader::fill(GlobalBatch& batch) {
  impl_->refill(batch);
}

void Loader::put_back(GlobalBatch batch) {
  impl_->put_back(std::move(batch));
}

}  // namespace vlmtrain::data
