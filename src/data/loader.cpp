#include "vlmtrain/data/loader.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <exception>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "data/bad_sample_log.h"
#include "data/problem.h"
#include "data/shrunk_numbers.h"
#include "data/units_ahead.h"
#include "vlmtrain/base/bytes.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/rng.h"
#include "vlmtrain/data/other_reading.h"
#include "vlmtrain/data/sample_stream.h"

namespace vlmtrain::data {

/// A unit whose samples are made, if they are this process's.
struct MadeUnit {
  DrawnUnit drawn;
  std::vector<Sample> samples;
};

namespace {

/// One that nobody here has made: it has no more than its place. Any other has tokens.
bool is_made(const Sample& sample) {
  return !sample.token_ids.empty();
}

Sample place_of(int64_t index, uint64_t seed) {
  Sample sample;
  sample.index = index;
  sample.seed = seed;
  return sample;
}

}  // namespace

class Loader::Impl {
 public:
  Impl(const io::Records& records, const SampleProcessor& processor, const DrawOrder& order, LoaderSettings settings,
       Cursor start, Ledger& ledger)
      : records_(records),
        processor_(processor),
        order_(order),
        settings_(std::move(settings)),
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
    ahead_ = std::make_unique<UnitsAhead>(order, cursor_, settings_.global_batch_size);
    stream_.emplace(
        [this] { return std::optional{next_ahead()}; },
        [this, dropped = dropped_samples()](const DrawnPlace& place) {
          const int64_t index = place.index;
          const bool is_wanted = index >= 0 && dropped[static_cast<size_t>(index)] == 0;
          return is_wanted ? make_sample(processor_, records_.at(index), index, place.seed) : Sample();
        },
        SampleStream::Settings{
            .workers = settings_.num_workers, .ahead = samples_ahead(), .bytes_ahead = settings_.bytes_ahead});
  }

  ~Impl() { summarize(); }

  GlobalBatch next() {
    GlobalBatch batch;
    batch.start = cursor_;
    fill(batch);
    cursor_ = with_next_batch(std::move(cursor_));
    batch.next = cursor_;
    while (agree_on_bad(batch)) replace_lost(batch);
    return batch;
  }

  void refill(GlobalBatch& batch) {
    do {
      replace_lost(batch);
    } while (agree_on_bad(batch));
  }

  void put_back(GlobalBatch batch) {
    std::vector<MadeUnit> units;
    units.reserve(batch.units.size());
    for (DrawnUnit& unit : batch.units) units.push_back({.drawn = unit, .samples = {}});
    const auto unit_of = [&](uint64_t seed) -> MadeUnit& { return units[static_cast<size_t>(batch.unit_of.at(seed))]; };
    for (Sample& sample : batch.samples) unit_of(sample.seed).samples.push_back(std::move(sample));
    for (const auto& sample : batch.elsewhere) {
      unit_of(sample.seed).samples.push_back(place_of(sample.index, sample.seed));
    }
    for (auto unit = units.rbegin(); unit != units.rend(); ++unit) {
      if (!unit->samples.empty()) lane(unit->drawn.lane).held_back.push_front(std::move(*unit));
    }
    cursor_ = std::move(batch.start);
  }

 private:
  bool is_alone() const { return settings_.share.world_size == 1; }

  /// Which process makes the unit at this place of a batch.
  int64_t rank_at(int64_t position) const { return position % settings_.share.world_size; }

  /// The next sample that threads are to make, or ~index of one that is most likely another process's: only where a
  /// batch has lost units does a guess fail, and the sample is made when it is drawn.
  DrawnPlace next_ahead() {
    const UnitsAhead::Next next = ahead_->next();
    const bool is_own = is_alone() || (next.position && rank_at(*next.position) == settings_.share.rank);
    return {.index = is_own ? next.sample : ~next.sample, .seed = draw_seed(next.lane, next.place)};
  }

  /// Draws units for those that the batch has lost.
  void replace_lost(GlobalBatch& batch) {
    const int64_t batches = cursor_.batches;
    for (const auto& [lane, rank] : take_lost(batch)) {
      ahead_->want_another(lane);
      add(batch, draw(lane, rank, batch.wait_seconds));
    }
    fill(batch);
    cursor_.batches = batches;
    batch.next = cursor_;
  }

  /// Tells the other processes of this one's bad samples and hears of theirs: all of them leave the batch. Whether
  /// there was any.
  bool agree_on_bad(GlobalBatch& batch) {
    if (is_alone()) return false;
    std::set<int64_t> bad;
    for (const auto& word : settings_.share.each(words_of(batch))) {
      if (word.empty()) continue;
      const auto json = nlohmann::json::parse(word);
      for (const auto& entry : json.at("bad")) {
        const auto index = entry.at(0).get<int64_t>();
        const Problem problem{entry.at(1), entry.at(2), /*skippable=*/true, entry.at(3).get<bool>()};
        if (bad.insert(index).second && !settle(index, problem)) throw stopped_by(index, problem);
      }
      for (const auto& entry : json.at("shrunk")) take_shrunk(batch, entry);
      for (const auto& entry : json.at("notices")) take_notices(batch, entry);
    }
    bad_.clear();
    std::erase_if(batch.elsewhere, [&](const SampleElsewhere& sample) { return bad.contains(sample.index); });
    // Drawn twice into one batch, it may have been made before the second time failed.
    std::erase_if(batch.samples, [&](const Sample& sample) { return bad.contains(sample.index); });
    return !bad.empty();
  }

  /// {"bad": [[index, reason, message, is dropped whatever the policy]], "shrunk": [[seed, numbers]],
  /// "notices": [[seed, [kind, example], …]]}; "" for none.
  std::string words_of(const GlobalBatch& batch) const {
    auto bad = nlohmann::json::array(), shrunk = nlohmann::json::array(), notices = nlohmann::json::array();
    for (const auto& [index, problem] : bad_) {
      bad.push_back({index, problem.reason, problem.message, problem.is_dropped});
    }
    for (const Sample& sample : batch.samples) {
      if (sample.shrunk) shrunk.push_back({sample.seed, numbers_of(*sample.shrunk)});
      auto entry = nlohmann::json::array({sample.seed});
      for (const auto& [kind, example] : sample.notices) {
        if (ledger_.counts_as_used(kind)) entry.push_back({kind, example});
      }
      if (entry.size() > 1) notices.push_back(std::move(entry));
    }
    if (bad.empty() && shrunk.empty() && notices.empty()) return {};
    return nlohmann::json{{"bad", std::move(bad)}, {"shrunk", std::move(shrunk)}, {"notices", std::move(notices)}}.dump(
        -1, ' ', false, nlohmann::json::error_handler_t::replace);
  }

  static void take_notices(GlobalBatch& batch, const nlohmann::json& entry) {
    const auto sample = std::ranges::find(batch.elsewhere, entry.at(0).get<uint64_t>(), &SampleElsewhere::seed);
    if (sample == batch.elsewhere.end()) return;
    sample->notices.clear();
    for (size_t i = 1; i < entry.size(); ++i) sample->notices.push_back({entry[i].at(0), entry[i].at(1)});
  }

  static void take_shrunk(GlobalBatch& batch, const nlohmann::json& entry) {
    const auto sample = std::ranges::find(batch.elsewhere, entry.at(0).get<uint64_t>(), &SampleElsewhere::seed);
    if (sample != batch.elsewhere.end()) sample->shrunk = shrunk_in(entry.at(1));
  }

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
      MadeUnit unit = draw(chosen, rank_at(units), batch.wait_seconds);
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
      if (is_alone() || is_made(sample)) {
        batch.samples.push_back(std::move(sample));
      } else {
        batch.elsewhere.push_back({.index = sample.index, .seed = sample.seed});
      }
    }
    batch.units.push_back(unit.drawn);
  }

  struct LostUnit {
    int64_t lane;
    int64_t rank;
  };

  /// Those of the units that are gone, which are taken to be replaced from here on.
  static std::vector<LostUnit> take_lost(GlobalBatch& batch) {
    std::vector<char> is_there(batch.units.size());
    const auto mark = [&](uint64_t seed) { is_there[static_cast<size_t>(batch.unit_of.at(seed))] = 1; };
    for (const Sample& sample : batch.samples) mark(sample.seed);
    for (const SampleElsewhere& sample : batch.elsewhere) mark(sample.seed);
    std::vector<LostUnit> lost;
    for (size_t unit = 0; unit < is_there.size(); ++unit) {
      if (is_there[unit] != 0 || batch.units[unit].is_replaced) continue;
      batch.units[unit].is_replaced = true;
      lost.push_back({.lane = batch.units[unit].lane, .rank = batch.units[unit].rank});
    }
    return lost;
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

  /// The next unit of a lane that holds a usable sample, with those: made where this is process `rank`.
  MadeUnit draw(int64_t number, int64_t rank, double& wait_seconds) {
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
      unit.drawn.rank = rank;
      if (!is_alone()) make_or_forget(unit);
      if (!unit.samples.empty()) return unit;
      ahead_->want_another(number);
    }
  }

  /// What the threads made for another process, or did not make for this one, since a batch had lost units.
  void make_or_forget(MadeUnit& unit) {
    for (Sample& sample : unit.samples) {
      const bool is_own = unit.drawn.rank == settings_.share.rank;
      if (!is_own) {
        bad_.erase(sample.index);
        sample = place_of(sample.index, sample.seed);
      } else if (!is_made(sample) && !bad_.contains(sample.index)) {
        try {
          const uint64_t seed = sample.seed;
          sample = make_sample(processor_, records_.at(sample.index), sample.index, seed);
          sample.seed = seed;
        } catch (...) {
          note_bad(sample.index, std::current_exception());
        }
      }
    }
  }

  /// A bad sample of this process's, which stays in the batch until all processes know.
  void note_bad(int64_t index, const std::exception_ptr& error) {
    Problem problem = describe(error);
    if (!problem.skippable) std::rethrow_exception(error);
    bad_.emplace(index, std::move(problem));
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
      if (item.error && is_alone()) {
        settle_bad_sample(index, item.error);
        continue;
      }
      if (item.error) note_bad(index, item.error);
      lane.has_usable = true;
      item.sample.index = index;
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
      if (item->index < 0) item->index = ~item->index;
      lane(order_.lane_of(item->index)).made.push_back(std::move(*item));
    }
    StreamItem item = std::move(made.front());
    made.pop_front();
    return item;
  }

  void settle_bad_sample(int64_t index, const std::exception_ptr& error) {
    const Problem problem = describe(error);
    if (settle(index, problem)) return;
    if (problem.skippable) throw stopped_by(index, problem);
    spdlog::error("{} stopped the run: {}", name(index), problem.message);
    std::rethrow_exception(error);
  }

  UserError stopped_by(int64_t index, const Problem& problem) const {
    return data_error("{}, {}: {}; or go on without such samples: data.on_bad_sample=skip{}", ledger_.dataset(),
                      records_.text_at(index).place, problem.message,
                      settings_.read_otherwise ? words_of_other_reading(problem.message) : "");
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
  const SampleProcessor& processor_;
  const DrawOrder& order_;
  LoaderSettings settings_;
  Cursor cursor_;  // behind the last unit that was handed out
  Ledger& ledger_;
  BadSampleLog log_;
  bool warned_of_bytes_ = false;
  bool told_of_shrunk_ = false;
  std::map<int64_t, Problem> bad_;  // samples of this process, by index, that the others do not know of
  std::vector<LaneState> lanes_;
  std::unique_ptr<UnitsAhead> ahead_;
  std::optional<SampleStream> stream_;  // last: its threads ask the ones above
};

Loader::Loader(const io::Records& records, const SampleProcessor& processor, const DrawOrder& order,
               LoaderSettings settings, Cursor start, Ledger& ledger)
    : impl_(std::make_unique<Impl>(records, processor, order, std::move(settings), std::move(start), ledger)) {}

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
