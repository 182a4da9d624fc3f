#include "vlmtrain/data/loader/loader.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "data/loader/bad_sample_handler.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/data/loader/sample_stream.h"
#include "vlmtrain/data/order/sample_order.h"
#include "vlmtrain/data/sample/sample.h"

namespace vlmtrain::data {

namespace {

/// Returns whether this rank processed the sample. Only placeholders have no tokens.
bool is_loaded(const Sample& sample) {
  return !sample.token_ids.empty();
}

/// Returns a placeholder for a sample that another rank processes.
Sample make_placeholder_sample(int64_t index, uint64_t seed) {
  Sample sample;
  sample.index = index;
  sample.seed = seed;
  return sample;
}

}  // namespace

/// A unit with its samples, which are placeholders if another rank processes them.
struct LoadedUnit {
  BatchUnit batch_unit;
  std::vector<Sample> samples;
};

class Loader::Impl {
 public:
  Impl(const io::Records& records, const SampleProcessor& processor, const SampleOrder& order, LoaderSettings settings,
       Cursor start, Ledger& ledger)
      : records_(records),
        processor_(processor),
        order_(order),
        settings_(std::move(settings)),
        cursor_(start.sources.empty() ? order.make_start_cursor() : std::move(start)),
        ledger_(ledger),
        bad_sample_handler_(records_, ledger_, settings_) {
    check_arguments();
    source_states_.reserve(cursor_.sources.size());
    for (int64_t source = 0; source < order.num_sources(); ++source) {
      const EpochPosition position = cursor_.sources[static_cast<size_t>(source)];
      // The part of the epoch before the cursor is assumed to have had a usable sample.
      source_states_.push_back({.iterator = SourceIterator(order, source, position),
                                .start_position = position,
                                .has_usable_sample = position.offset > 0,
                                .ready_items = {},
                                .pending_units = {}});
    }
    prefetch_queue_ = std::make_unique<PrefetchQueue>(order, cursor_, settings_.global_batch_size);
    stream_.emplace([this] { return std::optional{make_prefetch_request()}; },
                    [this, dropped = make_dropped_flags()](const SampleRequest& request) {
                      const int64_t index = request.index;
                      const bool is_needed = index >= 0 && dropped[static_cast<size_t>(index)] == 0;
                      return is_needed ? make_sample(processor_, records_.at(index), index, request.seed) : Sample();
                    },
                    SampleStream::Settings{.num_workers = settings_.num_workers,
                                           .max_prefetch_samples = compute_max_prefetch_samples(),
                                           .prefetch_bytes = settings_.prefetch_bytes});
  }

  ~Impl() { bad_sample_handler_.log_summary(); }

  GlobalBatch next() {
    GlobalBatch batch;
    batch.start = cursor_;
    fill_batch(batch);
    ++cursor_.num_batches;
    batch.next = cursor_;
    while (bad_sample_handler_.sync_bad_samples(batch)) replace_dropped_units(batch);
    return batch;
  }

  void refill(GlobalBatch& batch) {
    do {
      replace_dropped_units(batch);
    } while (bad_sample_handler_.sync_bad_samples(batch));
  }

  void put_back(GlobalBatch batch) {
    std::vector<LoadedUnit> units;
    units.reserve(batch.units.size());
    for (BatchUnit& unit : batch.units) units.push_back({.batch_unit = unit, .samples = {}});
    const auto find_unit = [&](uint64_t seed) -> LoadedUnit& {
      return units[static_cast<size_t>(batch.unit_index_by_seed.at(seed))];
    };
    for (Sample& sample : batch.samples) find_unit(sample.seed).samples.push_back(std::move(sample));
    for (const auto& sample : batch.remote_samples)
      find_unit(sample.seed).samples.push_back(make_placeholder_sample(sample.index, sample.seed));
    for (auto unit = units.rbegin(); unit != units.rend(); ++unit) {
      if (!unit->samples.empty()) get_source_state(unit->batch_unit.source).pending_units.push_front(std::move(*unit));
    }
    cursor_ = std::move(batch.start);
  }

 private:
  bool is_single_rank() const { return settings_.shard.world_size == 1; }

  /// Returns the rank that processes a unit of a batch.
  int64_t get_unit_rank(int64_t unit_index) const { return unit_index % settings_.shard.world_size; }

  /// Returns the next sample for the worker threads. The index is ~index if another rank is
  /// expected to process the sample; workers then return an empty sample. The expectation can be
  /// wrong only after a batch lost units; the sample is then processed when it is drawn.
  SampleRequest make_prefetch_request() {
    const PrefetchQueue::QueuedSample next = prefetch_queue_->next();
    const bool is_local = is_single_rank() || (next.expected_unit_index &&
                                               get_unit_rank(*next.expected_unit_index) == settings_.shard.rank);
    return {.index = is_local ? next.sample_index : ~next.sample_index,
            .seed = order_.compute_sample_seed(next.source, next.position)};
  }

  /// Draws replacements for the units of a batch whose samples were all dropped.
  void replace_dropped_units(GlobalBatch& batch) {
    const int64_t num_batches = cursor_.num_batches;
    for (const BatchUnit& unit : take_dropped_units(batch)) {
      prefetch_queue_->request_extra_unit(unit.source);
      add_unit(batch, draw_unit(unit.source, unit.rank, batch.wait_seconds));
    }
    fill_batch(batch);
    cursor_.num_batches = num_batches;
    batch.next = cursor_;
  }

  struct SourceState {
    SourceIterator iterator;
    EpochPosition start_position;          // at the start of the run
    bool has_usable_sample = false;        // the current epoch had a usable sample so far
    std::deque<StreamItem> ready_items;    // processed samples that are not drawn yet
    std::deque<LoadedUnit> pending_units;  // units to draw before the next one of `iterator`, in order
  };

  SourceState& get_source_state(int64_t source) { return source_states_[static_cast<size_t>(source)]; }

  /// Returns 1 for each dropped sample, by index. A copy: worker threads must not read the ledger.
  std::vector<char> make_dropped_flags() const {
    std::vector<char> dropped_flags(static_cast<size_t>(records_.size()));
    for (size_t i = 0; i < dropped_flags.size(); ++i)
      dropped_flags[i] = bad_sample_handler_.is_dropped(static_cast<int64_t>(i)) ? 1 : 0;
    return dropped_flags;
  }

  void check_arguments() const {
    VLMTRAIN_CHECK(ledger_.num_samples() == records_.size() && order_.num_samples() == records_.size(),
                   "the ledger has {} samples and the order {}, but there are {} records", ledger_.num_samples(),
                   order_.num_samples(), records_.size());
    VLMTRAIN_CHECK(settings_.global_batch_size >= 1, "the global batch size is {}", settings_.global_batch_size);
    if (records_.size() == 0)
      throw data_error("{}: has no samples; set {} to another file", ledger_.dataset_name(), keys::data::kTrain);
    order_.check_cursor(cursor_, ledger_.dataset_name());
  }

  void log_first_shrunk_sample(const Sample& sample) {
    if (has_logged_shrunk_sample_ || !sample.shrink_info) return;
    has_logged_shrunk_sample_ = true;
    spdlog::info(
        "sample {} is longer than {}: its images and videos are shrunk from {} to {} tokens; ledger.json lists all "
        "such samples, {} sets how they are treated",
        sample.id, keys::data::kMaxLength, sample.shrink_info->tokens, sample.shrink_info->tokens_after,
        keys::data::kOnTooLong);
  }

  void warn_once_if_memory_limited() {
    if (has_warned_of_memory_limit_ || !stream_->was_memory_limited()) return;
    has_warned_of_memory_limit_ = true;
    spdlog::warn(
        "prefetching is limited to {} of host memory, so that fewer than {} decoded samples are ready; give the job "
        "more memory, or lower {}",
        format_bytes(settings_.prefetch_bytes), compute_max_prefetch_samples(), keys::data::kImageMaxPixels);
  }

  int64_t compute_max_prefetch_samples() const {
    if (settings_.max_prefetch_samples > 0) return settings_.max_prefetch_samples;
    double max_samples_per_unit = 1;
    for (const SourceState& state : source_states_)
      max_samples_per_unit = std::max(max_samples_per_unit, state.iterator.compute_mean_samples_per_unit());
    return std::llround(std::ceil(2 * max_samples_per_unit * static_cast<double>(settings_.global_batch_size)));
  }

  /// Draws units until the batch is full.
  void fill_batch(GlobalBatch& batch) {
    int64_t tokens = count_tokens(batch.samples);
    auto num_units = std::ranges::count(batch.units, false, &BatchUnit::is_replaced);
    for (; !is_batch_full(num_units, tokens); ++num_units) {
      std::vector<double> previous_deficits = cursor_.source_deficits;
      const int64_t source = order_.mixture_sampler().draw_source(cursor_);
      LoadedUnit unit = draw_unit(source, get_unit_rank(num_units), batch.wait_seconds);
      const int64_t unit_tokens = count_tokens(unit.samples);
      if (should_defer_unit(batch, tokens, unit_tokens)) {
        cursor_.source_deficits = std::move(previous_deficits);
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
    cursor_.sources[static_cast<size_t>(unit.batch_unit.source)] = unit.batch_unit.end;
    for (Sample& sample : unit.samples) {
      batch.unit_index_by_seed[sample.seed] = std::ssize(batch.units);
      if (is_single_rank() || is_loaded(sample)) {
        batch.samples.push_back(std::move(sample));
      } else {
        batch.remote_samples.push_back({.index = sample.index, .seed = sample.seed});
      }
    }
    batch.units.push_back(unit.batch_unit);
  }

  /// Returns the units of the batch without samples, and marks them as replaced.
  static std::vector<BatchUnit> take_dropped_units(GlobalBatch& batch) {
    std::vector<char> has_samples(batch.units.size());
    const auto mark_present = [&](uint64_t seed) {
      has_samples[static_cast<size_t>(batch.unit_index_by_seed.at(seed))] = 1;
    };
    for (const Sample& sample : batch.samples) mark_present(sample.seed);
    for (const RemoteSample& sample : batch.remote_samples) mark_present(sample.seed);
    std::vector<BatchUnit> dropped_units;
    for (size_t unit = 0; unit < has_samples.size(); ++unit) {
      if (has_samples[unit] != 0 || batch.units[unit].is_replaced) continue;
      batch.units[unit].is_replaced = true;
      dropped_units.push_back(batch.units[unit]);
    }
    return dropped_units;
  }

  static int64_t count_tokens(const std::vector<Sample>& samples) {
    int64_t tokens = 0;
    for (const Sample& sample : samples) tokens += sample.tokens();
    return tokens;
  }

  bool is_batch_full(int64_t num_units, int64_t tokens) const {
    return num_units >= settings_.global_batch_size ||
           (settings_.global_batch_tokens && tokens >= *settings_.global_batch_tokens);
  }

  /// Returns whether the batch is nearer to its target number of tokens without the unit.
  bool should_defer_unit(const GlobalBatch& batch, int64_t tokens, int64_t unit_tokens) const {
    if (!settings_.global_batch_tokens || batch.samples.empty()) return false;
    const int64_t target_tokens = *settings_.global_batch_tokens;
    return tokens + unit_tokens - target_tokens > target_tokens - tokens;
  }

  /// Returns the next usable unit of a source. `rank` processes it. Adds waiting to `wait_seconds`.
  LoadedUnit draw_unit(int64_t source, int64_t rank, double& wait_seconds) {
    SourceState& state = this->get_source_state(source);
    while (true) {
      LoadedUnit unit;
      if (state.pending_units.empty()) {
        unit = wait_for_next_unit(source, wait_seconds);
      } else {
        unit = std::move(state.pending_units.front());
        state.pending_units.pop_front();
        std::erase_if(unit.samples,
                      [this](const Sample& sample) { return bad_sample_handler_.is_dropped(sample.index); });
      }
      unit.batch_unit.rank = rank;
      if (!is_single_rank()) assign_unit_to_rank(unit);
      if (!unit.samples.empty()) return unit;
      prefetch_queue_->request_extra_unit(source);
    }
  }

  /// Replaces the samples of a unit by placeholders if another rank processes it; otherwise
  /// processes its placeholders. Both are needed only after a batch lost units, when
  /// make_prefetch_request() expected the wrong rank.
  void assign_unit_to_rank(LoadedUnit& unit) {
    for (Sample& sample : unit.samples) {
      const bool is_local = unit.batch_unit.rank == settings_.shard.rank;
      if (!is_local) {
        bad_sample_handler_.forget_failure(sample.index);
        sample = make_placeholder_sample(sample.index, sample.seed);
      } else if (!is_loaded(sample) && !bad_sample_handler_.contains(sample.index)) {
        try {
          const uint64_t seed = sample.seed;
          sample = make_sample(processor_, records_.at(sample.index), sample.index, seed);
          sample.seed = seed;
        } catch (...) {
          bad_sample_handler_.add(sample.index, std::current_exception());
        }
      }
    }
  }

  /// Takes the next unit of a source from the worker threads.
  LoadedUnit wait_for_next_unit(int64_t source, double& wait_seconds) {
    SourceState& state = this->get_source_state(source);
    const SourceIterator::Unit epoch_batch_unit = state.iterator.next();
    if (epoch_batch_unit.begin.offset == 0) start_epoch(source, epoch_batch_unit.begin);
    LoadedUnit loaded_unit{
        .batch_unit = {.source = source, .begin = epoch_batch_unit.begin, .end = epoch_batch_unit.end}, .samples = {}};
    EpochPosition position = epoch_batch_unit.begin;
    for (const int64_t index : epoch_batch_unit.samples) {
      StreamItem item = take_stream_item(source, wait_seconds);
      VLMTRAIN_CHECK(item.index == index, "the stream returned sample {} instead of {}", item.index, index);
      const uint64_t seed = order_.compute_sample_seed(source, position);
      ++position.offset;
      if (bad_sample_handler_.is_dropped(index)) continue;
      if (item.error && is_single_rank()) {
        bad_sample_handler_.handle_failure(index, item.error);
        continue;
      }
      if (item.error) bad_sample_handler_.add(index, item.error);
      state.has_usable_sample = true;
      item.sample.index = index;
      item.sample.seed = seed;
      log_first_shrunk_sample(item.sample);
      loaded_unit.samples.push_back(std::move(item.sample));
    }
    return loaded_unit;
  }

  /// Returns the next processed sample of a source. Samples of other sources that the stream
  /// returns before it are kept.
  StreamItem take_stream_item(int64_t source, double& wait_seconds) {
    std::deque<StreamItem>& ready_items = get_source_state(source).ready_items;
    while (ready_items.empty()) {
      const auto begin = std::chrono::steady_clock::now();
      auto item = stream_->next();
      wait_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      VLMTRAIN_CHECK(item.has_value(), "the endless sequence ended");
      if (item->index < 0) item->index = ~item->index;
      get_source_state(order_.find_sample_source(item->index)).ready_items.push_back(std::move(*item));
    }
    StreamItem item = std::move(ready_items.front());
    ready_items.pop_front();
    return item;
  }

  /// Starts an epoch. Throws UserError (kBadData) if the previous one had no usable sample.
  void start_epoch(int64_t source, EpochPosition position) {
    SourceState& state = this->get_source_state(source);
    if (position == state.start_position) return;
    bad_sample_handler_.log_summary();
    if (!state.has_usable_sample) {
      const MixtureSource& mixture_source = order_.source(source);
      throw data_error("{}: none of the {} samples{} can be used; ledger.json names each with the reason",
                       ledger_.dataset_name(), mixture_source.samples.size(),
                       order_.num_sources() == 1 ? "" : " of " + mixture_source.name);
    }
    state.has_usable_sample = false;
  }

  const io::Records& records_;
  const SampleProcessor& processor_;
  const SampleOrder& order_;
  LoaderSettings settings_;
  Cursor cursor_;  // after the last unit that was returned
  Ledger& ledger_;
  BadSampleHandler bad_sample_handler_;
  bool has_warned_of_memory_limit_ = false;
  bool has_logged_shrunk_sample_ = false;
  std::vector<SourceState> source_states_;
  std::unique_ptr<PrefetchQueue> prefetch_queue_;
  std::optional<SampleStream> stream_;  // last: its threads use the members above
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
