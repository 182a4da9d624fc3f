#include "report/inspection_words.h"

#include <fmt/format.h>

#include "vlmtrain/base/number_words.h"
#include "vlmtrain/base/printable.h"
#include "vlmtrain/report/inspection_text.h"

namespace vlmtrain::report {

namespace {

NamedHistogram named(const std::string& name, const data::Histogram& histogram) {
  std::string text =
      histogram.least == histogram.most
          ? fmt::format("{} each", grouped(histogram.least))
          : fmt::format("{} to {} a sample, median {}, 95 % up to {}", grouped(histogram.least),
                        grouped(histogram.most), grouped(histogram.median), grouped(histogram.percentile_95));
  return {.name = name, .text = text + fmt::format("; {} in all", grouped(histogram.sum)), .histogram = &histogram};
}

double percent(double share) {
  return 100 * share;
}

}  // namespace

const char* row_title(const Inspection& inspection) {
  return inspection.has_patches ? "Patches" : inspection.has_grids ? "Grids" : "Tiles";
}

std::vector<NamedHistogram> histograms_of(const Inspection& inspection) {
  if (inspection.tokens.count == 0) return {};
  std::vector<NamedHistogram> all{named("Tokens", inspection.tokens), named("Label tokens", inspection.label_tokens)};
  if (inspection.images.most > 0) all.push_back(named("Images", inspection.images));
  if (inspection.volumes.most > 0) all.push_back(named("Volumes", inspection.volumes));
  // Each volume is a grid, but for series.
  if (inspection.pixel_rows.most > 0 && inspection.pixel_rows.sum != inspection.volumes.sum) {
    all.push_back(named(row_title(inspection), inspection.pixel_rows));
  }
  if (inspection.video_frames.most > 0) all.push_back(named("Frames of videos", inspection.video_frames));
  return all;
}

std::string bin_words(const data::Histogram::Bin& bin) {
  return bin.first == bin.last ? grouped(bin.first) : fmt::format("{} - {}", grouped(bin.first), grouped(bin.last));
}

std::string run_words(const Inspection& inspection) {
  if (!inspection.no_order.empty()) return "none: " + inspection.no_order;
  std::string text = fmt::format("{} of {}", counted(inspection.steps, "step"),
                                 counted(inspection.global_batch_size, inspection.pack_limits ? "pack" : "sample"));
  if (inspection.epochs > 0)
    text += fmt::format(", {:.3g} {}", inspection.epochs, inspection.epochs == 1 ? "epoch" : "epochs");
  return text;
}

std::string inspection_headline(const Inspection& inspection) {
  std::string text = usable_words(inspection.ledger);
  if (inspection.bad() > 0) text += fmt::format("; {}", bad_words(inspection));
  if (!inspection.no_order.empty() && inspection.usable() > 0) text += fmt::format("; {}", inspection.no_order);
  if (inspection.is_blind()) text += "; none of them has an image, video or volume";
  return text;
}

std::vector<NoticeRow> notice_rows(const data::Ledger& ledger) {
  std::vector<NoticeRow> rows;
  for (const auto& [kind, count] : ledger.notices().kinds()) {
    rows.push_back({.kind = data::notice_words(kind),
                    .samples = grouped(count.samples),
                    .example = count.example.empty()
                                   ? printable(count.id)
                                   : fmt::format("{}: {}", printable(count.id), excerpt(count.example)),
                    .hint = data::hint_of_notice(kind)});
  }
  return rows;
}

std::string bad_words(const Inspection& inspection) {
  const int64_t failed = inspection.ledger.count(data::SampleStatus::kFailed);
  const int64_t dropped = inspection.ledger.count(data::SampleStatus::kDropped);
  if (failed == 0) return dropped == 1 ? "1 is dropped" : fmt::format("{} are dropped", grouped(dropped));
  std::string text = fmt::format("{} would stop training (data.on_bad_sample=fail)", grouped(failed));
  return dropped > 0 ? text + fmt::format(", {} are dropped", grouped(dropped)) : text;
}

std::string largest_words(const Inspection& inspection) {
  if (!inspection.predicted_for) {
    return "By their sizes: one of these needs most memory. How much, --gpu NAME or --gpu-gb GB tells.";
  }
  return fmt::format(
      "Memory: what a step of that sample alone takes on {}, with the recomputation of the plan, the CUDA context "
      "included; rehearsed on a virtual card, not measured. The plan of the run: {}.",
      inspection.predicted_for->card, inspection.predicted_for->plan);
}

std::string usable_words(const data::Ledger& ledger) {
  const int64_t bad = ledger.count(data::SampleStatus::kDropped) + ledger.count(data::SampleStatus::kFailed);
  return fmt::format("{}, {} of which can be used", counted(ledger.samples(), "sample"),
                     bad == 0                  ? "all"
                     : bad == ledger.samples() ? "none"
                                               : grouped(ledger.samples() - bad));
}

std::string beside_words(const data::Source& source) {
  std::string text;
  if (source.weight) text = fmt::format("weight {:g}", *source.weight);
  if (source.repeat) text = fmt::format("repeated {:g} times", *source.repeat);
  if (source.task.empty()) return text;
  return fmt::format("{}{}task {}", text, text.empty() ? "" : ", ", source.task);
}

std::string media_words(const data::SampleShape& shape, const Inspection& inspection) {
  if (shape.images == 0) return inspection.has_grids ? "no volume" : "no image";
  if (inspection.has_grids) return data::media_words(shape);
  return fmt::format("{}, {} {}", data::media_words(shape), grouped(shape.pixel_rows), inspection.row_word());
}

std::string pack_words(const Inspection& inspection) {
  const auto& packs = inspection.packs;
  const auto& limits = *inspection.pack_limits;
  std::string text = fmt::format(
      "{} in the first epoch; {:.1f} % of {} tokens and {:.1f} % of {} {} are taken. What keeps a pack from taking "
      "more: tokens in {}, {} in {}",
      counted(packs.fill.packs, "pack"), percent(packs.fill.tokens), grouped(limits.tokens), percent(packs.fill.images),
      limits.images, inspection.medium_word(), grouped(packs.bound_by_tokens()), inspection.medium_word(),
      grouped(packs.bound_by_images));
  if (limits.tiles) text += fmt::format(", {} in {}", inspection.row_word(), grouped(packs.bound_by_tiles));
  return text + fmt::format(". Most {} of one pack: {}", inspection.row_word(), grouped(packs.fill.most_tiles));
}

std::string repeated_ids_words(const Inspection& inspection) {
  const bool is_one = inspection.repeated_ids == 1;
  return fmt::format(
      "{} {} of several samples{}{}: the ledger tells them apart by their index, --record takes the first",
      counted(inspection.repeated_ids, "id"), is_one ? "is that" : "are those", is_one ? ", " : ", the first is ",
      printable(inspection.first_repeated_id));
}

std::string pixel_words(int64_t pixels) {
  constexpr double kMillion = 1e6;
  const double millions = static_cast<double>(pixels) / kMillion;
  return millions >= 0.1 ? fmt::format("{:.1f} million pixels", millions) : fmt::format("{} pixels", grouped(pixels));
}

}  // namespace vlmtrain::report
