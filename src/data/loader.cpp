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
struct LoadedUnit {
  BatchUnit info;
  std::vector<Sample> samples;
};

namespace {

/// One that nobody here has made: it has no more than its place. Any other has tokens.
bool is_loaded(const Sample& sample) {
  return !sample.token_ids.empty();
}

Sample make_placeholder(int64_t index, uint64_t seed) {
  Sample sample;
  sample.index = index;
  sample.seed = seed;
  return sample;
}

}  // namespace

class Loader::Impl {
 public:
  Impl(const io::Records& records, const SampleProcessor& processor, const SampleOrder& order, LoaderSettings settings,
       Cursor start, Ledger& ledger)
      : records_(records),
        processor_(processor),
        order_(order),
        settings_(std::move(settings)),
        cursor_(start.sources.empty() ? order.start() : std::move(start)),
        ledger_(ledger) {
    preflight_check();
    source_states_.reserve(cursor_.sources.size());
    for (int64_t source = 0; source < order.num_sources(); ++source) {
      const EpochPosition position = cursor_.sources[static_cast<size_t>(source)];
      // What lies before a resumed epoch's cut was not seen here.
      source_states_.push_back({.iterator = SourceIterator(order, source, position),
                                .first_position = position,
                                .has_usable = position.offset > 0,
                                .ready_items = {},
                                .pending_units = {}});
    }
    prefetch_queue_ = std::make_unique<PrefetchQueue>(order, cursor_, settings_.global_batch_size);
    stream_.emplace([this] { return std::optional{next_prefetch_request()}; },
                    [this, dropped = collect_dropped_samples()](const SampleRequest& request) {
                      const int64_t index = request.index;
                      const bool is_needed = index >= 0 && dropped[static_cast<size_t>(index)] == 0;
                      return is_needed ? make_sample(processor_, records_.at(index), index, request.seed) : Sample();
                    },
                    SampleStream::Settings{.workers = settings_.num_workers,
                                           .prefetch_samples = prefetch_samples(),
                                           .prefetch_bytes = settings_.prefetch_bytes});
  }

  ~Impl() { summarize(); }

  GlobalBatch next() {
    GlobalBatch batch;
    batch.start = cursor_;
    fill(batch);
    cursor_ = advance_batch(std::move(cursor_));
    batch.next = cursor_;
    while (sync_bad_samples(batch)) replace_lost_units(batch);
    return batch;
  }

  void refill(GlobalBatch& batch) {
    do {
      replace_lost_units(batch);
    } while (sync_bad_samples(batch));
  }

  void put_back(GlobalBatch batch) {
    std::vector<LoadedUnit> units;
    units.reserve(batch.units.size());
    for (BatchUnit& unit : batch.units) units.push_back({.info = unit, .samples = {}});
    const auto find_unit = [&](uint64_t seed) -> LoadedUnit& {
      return units[static_cast<size_t>(batch.unit_by_seed.at(seed))];
    };
    for (Sample& sample : batch.samples) find_unit(sample.seed).samples.push_back(std::move(sample));
    for (const auto& sample : batch.remote_samples) {
      find_unit(sample.seed).samples.push_back(make_placeholder(sample.index, sample.seed));
    }
    for (auto unit = units.rbegin(); unit != units.rend(); ++unit) {
      if (!unit->samples.empty()) get_source_state(unit->info.source).pending_units.push_front(std::move(*unit));
    }
    cursor_ = std::move(batch.start);
  }

 private:
  bool is_alone() const { return settings_.shard.world_size == 1; }

  /// Which process makes the unit at this place of a batch.
  int64_t get_unit_rank(int64_t unit_index) const { return unit_index % settings_.shard.world_size; }

  /// The next sample that threads are to make, or ~index of one that is most likely another process's: only where a
  /// batch has lost units does a guess fail, and the sample is made when it is drawn.
  SampleRequest next_prefetch_request() {
    const PrefetchQueue::Next next = prefetch_queue_->next();
    const bool is_local =
        is_alone() || (next.unit_position && get_unit_rank(*next.unit_position) == settings_.shard.rank);
    return {.index = is_local ? next.sample : ~next.sample, .seed = make_sample_seed(next.source, next.position)};
  }

  /// Draws units for those that the batch has lost.
  void replace_lost_units(GlobalBatch& batch) {
    const int64_t num_batches = cursor_.num_batches;
    for (const auto& [source, rank] : take_lost_units(batch)) {
      prefetch_queue_->request_extra_unit(source);
      add_unit(batch, draw_unit(source, rank, batch.wait_seconds));
    }
    fill(batch);
    cursor_.num_batches = num_batches;
    batch.next = cursor_;
  }

  /// Tells the other processes of this one's bad samples and hears of theirs: all of them leave the batch. Whether
  /// there was any.
  bool sync_bad_samples(GlobalBatch& batch) {
    if (is_alone()) return false;
    std::set<int64_t> bad;
    for (const auto& message : settings_.shard.all_gather_strings(serialize_status(batch))) {
      if (message.empty()) continue;
      const auto json = nlohmann::json::parse(message);
      for (const auto& entry : json.at("bad")) {
        const auto index = entry.at(0).get<int64_t>();
        const LoadFailure problem{entry.at(1), entry.at(2), /*skippable=*/true, entry.at(3).get<bool>()};
        if (bad.insert(index).second && !record_failure(index, problem)) throw make_stop_error(index, problem);
      }
      for (const auto& entry : json.at("shrunk")) apply_remote_shrink_info(batch, entry);
      for (const auto& entry : json.at("notices")) apply_remote_notices(batch, entry);
    }
    bad_samples_.clear();
    std::erase_if(batch.remote_samples, [&](const RemoteSample& sample) { return bad.contains(sample.index); });
    // Drawn twice into one batch, it may have been made before the second time failed.
    std::erase_if(batch.samples, [&](const Sample& sample) { return bad.contains(sample.index); });
    return !bad.empty();
  }

  /// {"bad": [[index, reason, message, is dropped whatever the policy]], "shrunk": [[seed, numbers]],
  /// "notices": [[seed, [kind, example], …]]}; "" for none.
  std::string serialize_status(const GlobalBatch& batch) const {
    auto bad = nlohmann::json::array(), shrunk = nlohmann::json::array(), notices = nlohmann::json::array();
    for (const auto& [index, problem] : bad_samples_) {
      bad.push_back({index, problem.reason, problem.message, problem.is_dropped});
    }
    for (const Sample& sample : batch.samples) {
      if (sample.shrunk) shrunk.push_back({sample.seed, to_json_array(*sample.shrunk)});
      auto entry = nlohmann::json::array({sample.seed});
      for (const auto& [kind, example] : sample.notices) {
        if (ledger_.is_counted_on_use(kind)) entry.push_back({kind, example});
      }
      if (entry.size() > 1) notices.push_back(std::move(entry));
    }
    if (bad.empty() && shrunk.empty() && notices.empty()) return {};
    return nlohmann::json{{"bad", std::move(bad)}, {"shrunk", std::move(shrunk)}, {"notices", std::move(notices)}}.dump(
        -1, ' ', false, nlohmann::json::error_handler_t::replace);
  }

  static void apply_remote_notices(GlobalBatch& batch, const nlohmann::json& entry) {
    const auto sample = std::ranges::find(batch.remote_samples, entry.at(0).get<uint64_t>(), &RemoteSample::seed);
    if (sample == batch.remote_samples.end()) return;
    sample->notices.clear();
    for (size_t i = 1; i < entry.size(); ++i) sample->notices.push_back({entry[i].at(0), entry[i].at(1)});
  }

  static void apply_remote_shrink_info(GlobalBatch& batch, const nlohmann::json& entry) {
    const auto sample = std::ranges::find(batch.remote_samples, entry.at(0).get<uint64_t>(), &RemoteSample::seed);
    if (sample != batch.remote_samples.end()) sample->shrunk = parse_shrink_info(entry.at(1));
  }

  struct SourceState {
    SourceIterator iterator;
    EpochPosition first_position;
    bool has_usable = false;               // the epoch that is under way
    std::deque<StreamItem> ready_items;    // that the stream gave before they were asked for
    std::deque<LoadedUnit> pending_units;  // what comes before the walk's next, in order
  };

  SourceState& get_source_state(int64_t get_source_state) {
    return source_states_[static_cast<size_t>(get_source_state)];
  }

  /// Each place of each epoch has its own; those of a data set of one lane are what they were before there were lanes.
  uint64_t make_sample_seed(int64_t source, EpochPosition position) const {
    const auto epoch = static_cast<uint64_t>(position.epoch), offset = static_cast<uint64_t>(position.offset);
    if (source == 0) return derive_stream_seed(order_.settings().seed, "sample", {epoch, offset});
    return derive_stream_seed(order_.settings().seed, "sample", {epoch, offset, static_cast<uint64_t>(source)});
  }

  /// Whether a sample was dropped before it is asked for, by index; for the threads, which cannot read the ledger.
  std::vector<char> collect_dropped_samples() const {
    std::vector<char> dropped(static_cast<size_t>(records_.size()));
    for (size_t i = 0; i < dropped.size(); ++i) {
      dropped[i] = ledger_.status(static_cast<int64_t>(i)) == SampleStatus::kDropped ? 1 : 0;
    }
    return dropped;
  }

  void preflight_check() const {
    VLMTRAIN_CHECK(ledger_.samples() == records_.size() && order_.samples() == records_.size(),
                   "a ledger of {} samples and an order of {} for {} records", ledger_.samples(), order_.samples(),
                   records_.size());
    VLMTRAIN_CHECK(settings_.global_batch_size >= 1, "a global batch of {}", settings_.global_batch_size);
    if (records_.size() == 0) {
      throw data_error("{}: holds no samples; name another file in data.train", ledger_.dataset());
    }
    order_.check(cursor_, ledger_.dataset());
  }

  static Cursor advance_batch(Cursor cursor) {
    ++cursor.num_batches;
    return cursor;
  }

  void log_first_shrunk_sample(const Sample& sample) {
    if (logged_shrunk_sample_ || !sample.shrunk) return;
    logged_shrunk_sample_ = true;
    spdlog::info(
        "sample {} is longer than data.max_length: its images and videos lose pixels, {} tokens become {}; ledger.json "
        "names each such sample, and data.on_too_long says what becomes of them",
        sample.id, sample.shrunk->tokens, sample.shrunk->tokens_after);
  }

  void warn_once_if_memory_limited() {
    if (warned_of_memory_limit_ || !stream_->was_memory_limited()) return;
    warned_of_memory_limit_ = true;
    spdlog::warn(
        "decoded samples wait in {} of host memory and no more, so that fewer than {} are ready ahead; more memory for "
        "the job, or a lower data.image_max_pixels, makes room",
        format_bytes(settings_.prefetch_bytes), prefetch_samples());
  }

  int64_t prefetch_samples() const {
    if (settings_.prefetch_samples > 0) return settings_.prefetch_samples;
    double samples_per_unit = 1;
    for (const SourceState& state : source_states_)
      samples_per_unit = std::max(samples_per_unit, state.iterator.mean_samples_per_unit());
    return std::llround(std::ceil(2 * samples_per_unit * static_cast<double>(settings_.global_batch_size)));
  }

  /// Draws until the batch is full.
  void fill(GlobalBatch& batch) {
    int64_t tokens = count_tokens(batch.samples);
    auto units = std::ranges::count(batch.units, false, &BatchUnit::is_replaced);
    for (; !is_full(units, tokens); ++units) {
      std::vector<double> deficits_before = cursor_.deficits;
      const int64_t source = order_.mixture_sampler().choose_source(cursor_);
      LoadedUnit unit = draw_unit(source, get_unit_rank(units), batch.wait_seconds);
      const int64_t unit_tokens = count_tokens(unit.samples);
      if (should_defer_unit(batch, tokens, unit_tokens)) {
        cursor_.deficits = std::move(deficits_before);
        get_source_state(source).pending_units.push_front(std::move(unit));
        break;
      }
      tokens += unit_tokens;
      add_unit(batch, std::move(unit));
    }
    batch.label_tokens = 0;
    for (const Sample& sample : batch.samples) batch.label_tokens += sample.label_tokens();
    warn_once_if_memory_limited();
  }

  void add_unit(GlobalBatch& batch, LoadedUnit unit) {
    cursor_.sources[static_cast<size_t>(unit.info.source)] = unit.info.end;
    for (Sample& sample : unit.samples) {
      batch.unit_by_seed[sample.seed] = std::ssize(batch.units);
      if (is_alone() || is_loaded(sample)) {
        batch.samples.push_back(std::move(sample));
      } else {
        batch.remote_samples.push_back({.index = sample.index, .seed = sample.seed});
      }
    }
    batch.units.push_back(unit.info);
  }

  struct LostUnit {
    int64_t source;
    int64_t rank;
  };

  /// Those of the units that are gone, which are taken to be replaced from here on.
  static std::vector<LostUnit> take_lost_units(GlobalBatch& batch) {
    std::vector<char> is_present(batch.units.size());
    const auto mark_present = [&](uint64_t seed) { is_present[static_cast<size_t>(batch.unit_by_seed.at(seed))] = 1; };
    for (const Sample& sample : batch.samples) mark_present(sample.seed);
    for (const RemoteSample& sample : batch.remote_samples) mark_present(sample.seed);
    std::vector<LostUnit> lost;
    for (size_t unit = 0; unit < is_present.size(); ++unit) {
      if (is_present[unit] != 0 || batch.units[unit].is_replaced) continue;
      batch.units[unit].is_replaced = true;
      lost.push_back({.source = batch.units[unit].source, .rank = batch.units[unit].rank});
    }
    return lost;
  }

  static int64_t count_tokens(const std::vector<Sample>& samples) {
    int64_t tokens = 0;
    for (const Sample& sample : samples) tokens += sample.tokens();
    return tokens;
  }

  bool is_full(int64_t units, int64_t tokens) const {
    return units >= settings_.global_batch_size ||
           (settings_.global_batch_tokens && tokens >= *settings_.global_batch_tokens);
  }

  bool should_defer_unit(const GlobalBatch& batch, int64_t tokens, int64_t unit_tokens) const {
    if (!settings_.global_batch_tokens || batch.samples.empty()) return false;
    const int64_t goal = *settings_.global_batch_tokens;
    return tokens + unit_tokens - goal > goal - tokens;
  }

  /// The next unit of a lane that holds a usable sample, with those: made where this is process `rank`.
  LoadedUnit draw_unit(int64_t source, int64_t rank, double& wait_seconds) {
    SourceState& state = this->get_source_state(source);
    while (true) {
      LoadedUnit unit;
      if (state.pending_units.empty()) {
        unit = load_unit(source, wait_seconds);
      } else {
        unit = std::move(state.pending_units.front());
        state.pending_units.pop_front();
        std::erase_if(unit.samples, [this](const Sample& sample) { return is_dropped(sample.index); });
      }
      unit.info.rank = rank;
      if (!is_alone()) assign_to_rank(unit);
      if (!unit.samples.empty()) return unit;
      prefetch_queue_->request_extra_unit(source);
    }
  }

  /// What the threads made for another process, or did not make for this one, since a batch had lost units.
  void assign_to_rank(LoadedUnit& unit) {
    for (Sample& sample : unit.samples) {
      const bool is_local = unit.info.rank == settings_.shard.rank;
      if (!is_local) {
        bad_samples_.erase(sample.index);
        sample = make_placeholder(sample.index, sample.seed);
      } else if (!is_loaded(sample) && !bad_samples_.contains(sample.index)) {
        try {
          const uint64_t seed = sample.seed;
          sample = make_sample(processor_, records_.at(sample.index), sample.index, seed);
          sample.seed = seed;
        } catch (...) {
          add_bad_sample(sample.index, std::current_exception());
        }
      }
    }
  }

  /// A bad sample of this process's, which stays in the batch until all processes know.
  void add_bad_sample(int64_t index, const std::exception_ptr& error) {
    LoadFailure problem = describe_failure(error);
    if (!problem.is_skippable) std::rethrow_exception(error);
    bad_samples_.emplace(index, std::move(problem));
  }

  bool is_dropped(int64_t index) const { return ledger_.status(index) == SampleStatus::kDropped; }

  LoadedUnit load_unit(int64_t source, double& wait_seconds) {
    SourceState& state = this->get_source_state(source);
    const SourceIterator::Unit epoch_unit = state.iterator.next();
    if (epoch_unit.begin.offset == 0) start_epoch(source, epoch_unit.begin);
    LoadedUnit loaded_unit{.info = {.source = source, .begin = epoch_unit.begin, .end = epoch_unit.end}, .samples = {}};
    EpochPosition position = epoch_unit.begin;
    for (const int64_t index : epoch_unit.samples) {
      StreamItem item = take_item(source, wait_seconds);
      VLMTRAIN_CHECK(item.index == index, "the stream gave sample {} for {}", item.index, index);
      const uint64_t seed = make_sample_seed(source, position);
      ++position.offset;
      if (is_dropped(index)) continue;
      if (item.error && is_alone()) {
        handle_bad_sample(index, item.error);
        continue;
      }
      if (item.error) add_bad_sample(index, item.error);
      state.has_usable = true;
      item.sample.index = index;
      item.sample.seed = seed;
      log_first_shrunk_sample(item.sample);
      loaded_unit.samples.push_back(std::move(item.sample));
    }
    return loaded_unit;
  }

  /// The next of a lane that the threads make.
  StreamItem take_item(int64_t source, double& wait_seconds) {
    std::deque<StreamItem>& ready_items = get_source_state(source).ready_items;
    while (ready_items.empty()) {
      const auto begin = std::chrono::steady_clock::now();
      auto item = stream_->next();
      wait_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      VLMTRAIN_CHECK(item.has_value(), "the endless sequence ended");
      if (item->index < 0) item->index = ~item->index;
      get_source_state(order_.find_source(item->index)).ready_items.push_back(std::move(*item));
    }
    StreamItem item = std::move(ready_items.front());
    ready_items.pop_front();
    return item;
  }

  void handle_bad_sample(int64_t index, const std::exception_ptr& error) {
    const LoadFailure problem = describe_failure(error);
    if (record_failure(index, problem)) return;
    if (problem.is_skippable) throw make_stop_error(index, problem);
    spdlog::error("{} stopped the run: {}", describe_sample(index), problem.message);
    std::rethrow_exception(error);
  }

  UserError make_stop_error(int64_t index, const LoadFailure& problem) const {
    return data_error("{}, {}: {}; or go on without such samples: data.on_bad_sample=skip{}", ledger_.dataset(),
                      records_.at_without_bytes(index).location, problem.message,
                      settings_.began_ignoring_keys ? explain_ignored_keys(problem.message) : "");
  }

  /// Enters the problem in the ledger; true if the run goes on without the sample.
  bool record_failure(int64_t index, const LoadFailure& problem) {
    const std::string id = records_.at_without_bytes(index).id;
    const bool must_stop = settings_.on_bad_sample == BadSamplePolicy::kFail && !problem.is_dropped;
    if (!problem.is_skippable || must_stop) {
      ledger_.mark_failed(index, id, problem.reason, problem.message);
      return false;
    }
    const bool was_dropped =
        ledger_.status(index) == SampleStatus::kDropped;  // in an earlier epoch, or before a resume
    ledger_.mark_dropped(index, id, problem.reason, problem.message);
    if (!was_dropped) bad_sample_log_.warn(problem.message);
    return true;
  }

  /// Before the first sample of a lane's epoch.
  void start_epoch(int64_t source, EpochPosition position) {
    SourceState& state = this->get_source_state(source);
    if (position == state.first_position) return;
    summarize();
    if (!state.has_usable) {
      const MixtureSource& mixture_source = order_.source(source);
      throw data_error("{}: none of the {} samples{} can be used; ledger.json names each with the reason",
                       ledger_.dataset(), mixture_source.samples.size(),
                       order_.num_sources() == 1 ? "" : " of " + mixture_source.name);
    }
    state.has_usable = false;
  }

  void summarize() { bad_sample_log_.summarize(ledger_.count(SampleStatus::kDropped), ledger_.samples()); }

  std::string describe_sample(int64_t index) const {
    const io::Record record = records_.at_without_bytes(index);
    return fmt::format("{}: sample {} ({})", ledger_.dataset(), record.id, record.location);
  }

  const io::Records& records_;
  const SampleProcessor& processor_;
  const SampleOrder& order_;
  LoaderSettings settings_;
  Cursor cursor_;  // behind the last unit that was handed out
  Ledger& ledger_;
  BadSampleLog bad_sample_log_;
  bool warned_of_memory_limit_ = false;
  bool logged_shrunk_sample_ = false;
  std::map<int64_t, LoadFailure> bad_samples_;  // samples of this process, by index, that the others do not know of
  std::vector<SourceState> source_states_;
  std::unique_ptr<PrefetchQueue> prefetch_queue_;
  std::optional<SampleStream> stream_;  // last: its threads ask the ones above
};

Loader::Loader(const io::Records& records, const SampleProcessor& processor, const SampleOrder& order,
               LoaderSettings settings, Cursor start, Ledger& ledger)
    : impl_(std::make_unique<Impl>(records, processor, order, std::move(settings), std::move(start), ledger)) {}

Loader::~Loader() = default;

GlobalBatch Loader::next() {
  return impl_->next();
}

void Loader::refill(GlobalBatch& batch) {
  impl_->refill(batch);
}

void Loader::put_back(GlobalBatch batch) {
  impl_->put_back(std::move(batch));
}

}  // namespace vlmtrain::data
