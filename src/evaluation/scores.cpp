#include "vlmtrain/evaluation/scores.h"

#include <ATen/ops/gt.h>
#include <ATen/ops/upsample_bilinear2d.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <limits>
#include <map>
#include <sstream>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/data/sample/sample.h"
#include "vlmtrain/image/mask.h"

namespace vlmtrain::evaluation {

namespace {

/// Numbers of pixels of two masks and of their intersection.
struct PixelOverlap {
  int64_t num_predicted_pixels = 0, num_true_pixels = 0, num_common_pixels = 0;

  int64_t num_union_pixels() const { return num_predicted_pixels + num_true_pixels - num_common_pixels; }
};

/// REQUIRES: both masks are uint8, contiguous, on the CPU and of equal size, as all functions below
/// do.
PixelOverlap compute_overlap(const at::Tensor& predicted, const at::Tensor& truth) {
  PixelOverlap overlap;
  const auto* const a = predicted.const_data_ptr<uint8_t>();
  const auto* const b = truth.const_data_ptr<uint8_t>();
  for (int64_t i = 0; i < predicted.numel(); ++i) {
    overlap.num_predicted_pixels += a[i] != 0 ? 1 : 0;
    overlap.num_true_pixels += b[i] != 0 ? 1 : 0;
    overlap.num_common_pixels += ((a[i] != 0) & (b[i] != 0)) ? 1 : 0;
  }
  return overlap;
}

/// Returns the smallest window that contains all nonzero pixels of both masks. REQUIRES: there is
/// one.
MaskWindow compute_bounding_window(const at::Tensor& a, const at::Tensor& b) {
  const int64_t height = a.size(0), width = a.size(1);
  int64_t top = height, bottom = -1, left = width, right = -1;
  for (const at::Tensor& mask : {a, b}) {
    const auto* row = mask.const_data_ptr<uint8_t>();
    for (int64_t y = 0; y < height; ++y, row += width) {
      const uint8_t* first = std::find_if(row, row + width, [](uint8_t pixel) { return pixel != 0; });
      if (first == row + width) continue;
      const uint8_t* last = row + width - 1;
      while (*last == 0) --last;
      top = std::min(top, y);
      bottom = std::max(bottom, y);
      left = std::min(left, static_cast<int64_t>(first - row));
      right = std::max(right, static_cast<int64_t>(last - row));
    }
  }
  return {.top = top, .left = left, .height = bottom - top + 1, .width = right - left + 1};
}

/// Returns the percentile of the square roots of `squared_distances`, which must not be empty.
/// Interpolates linearly between the two nearest ranks, like numpy. Reorders `squared_distances`.
double compute_distance_percentile(std::vector<int64_t>& squared_distances, double percent) {
  const double rank = percent / 100 * static_cast<double>(squared_distances.size() - 1);
  const auto lower = squared_distances.begin() + static_cast<std::ptrdiff_t>(rank);
  std::nth_element(squared_distances.begin(), lower, squared_distances.end());
  const double lower_distance = std::sqrt(static_cast<double>(*lower));
  if (lower + 1 == squared_distances.end()) return lower_distance;
  const double upper_distance = std::sqrt(static_cast<double>(*std::min_element(lower + 1, squared_distances.end())));
  return lower_distance + (upper_distance - lower_distance) * (rank - std::floor(rank));
}

/// Returns the 95th percentile of the distances from each pixel of the edge `from` to the edge
/// `to`. The window must contain both edges.
double compute_directed_hausdorff95(const at::Tensor& from, const at::Tensor& to, const MaskWindow& window) {
  const std::vector<int64_t> window_squared_distances = compute_squared_distances(to, window);
  std::vector<int64_t> edge_squared_distances;
  for (int64_t y = 0; y < window.height; ++y) {
    const uint8_t* row = from.const_data_ptr<uint8_t>() + (window.top + y) * from.size(1) + window.left;
    for (int64_t x = 0; x < window.width; ++x) {
      if (row[x] != 0) edge_squared_distances.push_back(window_squared_distances[y * window.width + x]);
    }
  }
  constexpr double kPercentile = 95;
  return compute_distance_percentile(edge_squared_distances, kPercentile);
}

double compute_hausdorff95(const at::Tensor& predicted, const at::Tensor& truth) {
  const MaskWindow window = compute_bounding_window(predicted, truth);
  const at::Tensor predicted_edge = image::extract_mask_edge(predicted);
  const at::Tensor true_edge = image::extract_mask_edge(truth);
  return std::max(compute_directed_hausdorff95(predicted_edge, true_edge, window),
                  compute_directed_hausdorff95(true_edge, predicted_edge, window));
}

void add_score_to_group(std::map<std::string, MaskScoreSums>& groups, const std::string& name, const MaskScore& score) {
  if (!name.empty()) groups[name].add(score);
}

}  // namespace

MaskScore score_mask(const at::Tensor& predicted_mask, const at::Tensor& true_mask) {
  for (const at::Tensor& mask : {predicted_mask, true_mask}) {
    VLMTRAIN_CHECK(mask.dim() == 2 && mask.scalar_type() == at::kByte && mask.is_cpu() && mask.numel() > 0,
                   "a mask to score must be uint8 [height, width] on the CPU");
  }
  VLMTRAIN_CHECK(predicted_mask.sizes() == true_mask.sizes(), "the predicted mask is {} x {}, the reference is {} x {}",
                 predicted_mask.size(0), predicted_mask.size(1), true_mask.size(0), true_mask.size(1));
  const at::Tensor a = predicted_mask.contiguous(), b = true_mask.contiguous();
  const PixelOverlap overlap = compute_overlap(a, b);
  if (overlap.num_union_pixels() == 0) {
    return {.iou = 1, .dice = 1, .hausdorff95 = {}, .is_truth_empty = true, .is_prediction_empty = true};
  }
  const auto num_intersection_pixels = static_cast<double>(overlap.num_common_pixels);
  MaskScore score{
      .iou = num_intersection_pixels / static_cast<double>(overlap.num_union_pixels()),
      .dice = 2 * num_intersection_pixels / static_cast<double>(overlap.num_predicted_pixels + overlap.num_true_pixels),
      .hausdorff95 = {},
      .is_truth_empty = overlap.num_true_pixels == 0,
      .is_prediction_empty = overlap.num_predicted_pixels == 0};
  if (overlap.num_predicted_pixels > 0 && overlap.num_true_pixels > 0) score.hausdorff95 = compute_hausdorff95(a, b);
  return score;
}

void MaskScoreSums::add(const MaskScore& score) {
  merge({.num_masks = 1,
         .iou_sum = score.iou,
         .dice_sum = score.dice,
         .num_masks_with_hausdorff95 = score.hausdorff95 ? 1 : 0,
         .hausdorff95_sum = score.hausdorff95.value_or(0),
         .num_empty_truths = score.is_truth_empty ? 1 : 0,
         .num_empty_predictions = score.is_prediction_empty ? 1 : 0});
}

void MaskScoreSums::merge(const MaskScoreSums& other) {
  num_masks += other.num_masks;
  iou_sum += other.iou_sum;
  dice_sum += other.dice_sum;
  num_masks_with_hausdorff95 += other.num_masks_with_hausdorff95;
  hausdorff95_sum += other.hausdorff95_sum;
  num_empty_truths += other.num_empty_truths;
  num_empty_predictions += other.num_empty_predictions;
}

std::optional<double> MaskScoreSums::hausdorff95() const {
  if (num_masks_with_hausdorff95 == 0) return std::nullopt;
  return hausdorff95_sum / static_cast<double>(num_masks_with_hausdorff95);
}

void MaskScores::add(const MaskScore& score, const std::string& task, const std::string& structure) {
  total_.add(score);
  add_score_to_group(by_task_, task, score);
  add_score_to_group(by_structure_, structure, score);
}

void MaskScores::merge(const MaskScores& other) {
  total_.merge(other.total_);
  for (const auto& [name, sums] : other.by_task_) by_task_[name].merge(sums);
  for (const auto& [name, sums] : other.by_structure_) by_structure_[name].merge(sums);
}

at::Tensor postprocess_mask(const at::Tensor& logits, int64_t side, const data::ValidRegion& valid_region,
                            image::ImageSize image_size) {
  const auto resize = [](const at::Tensor& map, int64_t rows, int64_t columns) {
    return at::upsample_bilinear2d(map, {rows, columns}, /*align_corners=*/false);
  };
  const at::Tensor resized_logits = resize(logits.view({1, 1, logits.size(0), logits.size(1)}), side, side);
  const at::Tensor cropped_logits =
      resized_logits.narrow(2, 0, valid_region.rows).narrow(3, 0, valid_region.columns).contiguous();
  return resize(cropped_logits, image_size.height, image_size.width)[0][0].gt(0).to(at::kByte);
}

namespace {

/// Larger than any distance in an image, and small enough that adding image coordinates does not
/// overflow.
constexpr int64_t kInfiniteDistance = int64_t{1} << 30;

/// Returns for each pixel of the window the distance to the nearest point in its column; at least
/// kInfiniteDistance if the column has no point. Makes one pass down and one pass up.
std::vector<int64_t> compute_column_distances(const at::Tensor& points, const MaskWindow& window) {
  const int64_t width = window.width;
  std::vector<int64_t> distances(static_cast<size_t>(window.height * width));
  std::vector<int64_t> previous_row_distances(static_cast<size_t>(width), kInfiniteDistance);
  for (int64_t y = 0; y < window.height; ++y) {
    const uint8_t* row = points.const_data_ptr<uint8_t>() + (window.top + y) * points.size(1) + window.left;
    int64_t* out = &distances[y * width];
    for (int64_t x = 0; x < width; ++x)
      out[x] = previous_row_distances[x] = row[x] != 0 ? 0 : previous_row_distances[x] + 1;
  }
  std::ranges::fill(previous_row_distances, kInfiniteDistance);
  for (int64_t y = window.height - 1; y >= 0; --y) {
    int64_t* out = &distances[y * width];
    for (int64_t x = 0; x < width; ++x)
      out[x] = previous_row_distances[x] = std::min(out[x], previous_row_distances[x] + 1);
  }
  return distances;
}

/// The parabola (x - vertex_x)² + height, as part of the lower envelope of several.
struct Parabola {
  int64_t vertex_x;
  int64_t height;
  double start;  // from this x on it is the lowest, until the start of the next one
};

/// Replaces the column distances d of a row with the squared distances to the nearest point of any
/// column, min over v of (x - v)² + d(v)². That is the lower envelope of one parabola per column
/// (Felzenszwalb and Huttenlocher). `envelope`: memory that is reused between rows.
void compute_row_squared_distances(int64_t* row, int64_t width, std::vector<Parabola>& envelope) {
  envelope.clear();
  for (int64_t x = 0; x < width; ++x) {
    if (row[x] >= kInfiniteDistance) continue;
    Parabola next{x, row[x] * row[x], -std::numeric_limits<double>::infinity()};
    while (!envelope.empty()) {
      const Parabola& last = envelope.back();
      // The two parabolas intersect at next.start. If `last` is lowest nowhere, it is removed.
      const int64_t intersection_numerator = next.height + x * x - last.height - last.vertex_x * last.vertex_x;
      next.start = static_cast<double>(intersection_numerator) / static_cast<double>(2 * (x - last.vertex_x));
      if (next.start > last.start) break;
      envelope.pop_back();
      next.start = -std::numeric_limits<double>::infinity();
    }
    envelope.push_back(next);
  }
  auto lowest_parabola = envelope.cbegin();
  for (int64_t x = 0; x < width; ++x) {
    while (lowest_parabola + 1 != envelope.cend() && (lowest_parabola + 1)->start < static_cast<double>(x))
      ++lowest_parabola;
    row[x] = (x - lowest_parabola->vertex_x) * (x - lowest_parabola->vertex_x) + lowest_parabola->height;
  }
}

}  // namespace

std::vector<int64_t> compute_squared_distances(const at::Tensor& points, const MaskWindow& window) {
  std::vector<int64_t> distances = compute_column_distances(points, window);
  std::vector<Parabola> envelope;
  for (int64_t y = 0; y < window.height; ++y)
    compute_row_squared_distances(&distances[y * window.width], window.width, envelope);
  return distances;
}

namespace {

char to_lower(char c) {
  return static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
}

bool is_digit(char c) {
  return std::isdigit(static_cast<unsigned char>(c)) != 0;
}

/// Converts ASCII letters to lower case and punctuation to spaces. Keeps the bytes of other
/// characters.
std::string strip_punctuation(std::string_view text) {
  std::string stripped_text;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool is_number_separator =
        (c == '.' || c == ',') && i > 0 && i + 1 < text.size() && is_digit(text[i - 1]) && is_digit(text[i + 1]);
    if (c == '\'' || (is_number_separator && c == ',')) continue;  // don't equals dont, and 1,000 equals 1000
    stripped_text += std::ispunct(static_cast<unsigned char>(c)) != 0 && !is_number_separator ? ' ' : to_lower(c);
  }
  return stripped_text;
}

std::map<std::string, int64_t> count_words(const std::string& normalized_text) {
  std::map<std::string, int64_t> counts;
  std::istringstream word_stream(normalized_text);
  for (std::string word; word_stream >> word;) ++counts[word];
  return counts;
}

}  // namespace

AnswerType determine_answer_type(const io::Record& record) {
  std::string type = record.answer_type;
  std::ranges::transform(type, type.begin(), to_lower);
  if (type == "closed") return AnswerType::kClosed;
  if (type == "open") return AnswerType::kOpen;
  const std::string answer = record.turns.empty() ? "" : normalize_answer(record.turns.back().text);
  return answer == "yes" || answer == "no" ? AnswerType::kClosed : AnswerType::kOpen;
}

std::string normalize_answer(std::string_view text) {
  // Words by the digit that replaces them.
  constexpr std::array<std::string_view, 11> kNumberWords{"none", "one",   "two",   "three", "four", "five",
                                                          "six",  "seven", "eight", "nine",  "ten"};
  std::string normalized_text;
  const std::string stripped_text = strip_punctuation(text);
  std::istringstream words(stripped_text);
  for (std::string word; words >> word;) {
    if (word == "a" || word == "an" || word == "the") continue;
    if (word == "zero") word = "none";
    const auto number = std::ranges::find(kNumberWords, word);
    if (number != kNumberWords.end()) word = std::to_string(number - kNumberWords.begin());
    if (!normalized_text.empty()) normalized_text += ' ';
    normalized_text += word;
  }
  if (!normalized_text.empty()) return normalized_text;
  // A single "a" is the answer to a multiple-choice question, not an article.
  std::istringstream word_stream(stripped_text);
  std::string word, second_word;
  return word_stream >> word && word == "a" && !(word_stream >> second_word) ? word : normalized_text;
}

void ClosedQuestionScore::add(std::string_view expected, std::string_view prediction) {
  ++num_samples;
  num_correct += normalize_answer(expected) == normalize_answer(prediction) ? 1 : 0;
}

void OpenQuestionScore::add(std::string_view expected, std::string_view prediction) {
  ++num_samples;
  const std::string reference = normalize_answer(expected), candidate = normalize_answer(prediction);
  num_exact_matches += reference == candidate ? 1 : 0;
  const auto reference_word_counts = count_words(reference), candidate_word_counts = count_words(candidate);
  int64_t num_common_words = 0, num_additional_words = 0, num_missed_words = 0;
  for (const auto& [word, count] : candidate_word_counts)
    (reference_word_counts.contains(word) ? num_common_words : num_additional_words) += count;
  for (const auto& [word, count] : reference_word_counts)
    num_missed_words += candidate_word_counts.contains(word) ? 0 : count;
  if (num_common_words == 0) return;  // all three scores are 0
  const double precision =
      static_cast<double>(num_common_words) / static_cast<double>(num_common_words + num_additional_words);
  const double recall =
      static_cast<double>(num_common_words) / static_cast<double>(num_common_words + num_missed_words);
  precision_sum += precision;
  recall_sum += recall;
  f1_sum += 2 * precision * recall / (precision + recall);
}

}  // namespace vlmtrain::evaluation
