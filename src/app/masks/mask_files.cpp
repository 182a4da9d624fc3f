#include "app/masks/mask_files.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/image/image_file.h"
#include "vlmtrain/image/overlay.h"
#include "vlmtrain/io/atomic.h"

namespace vlmtrain::app {

namespace {

namespace fs = std::filesystem;

constexpr const char* kOverlayFileName = "overlay.png";

/// Returns 12 for "mask_12.png"; nothing for another name.
std::optional<int64_t> parse_mask_number(const fs::path& file) {
  return file.extension() == ".png" ? parse_int_after_prefix("mask_", file.stem().string()) : std::nullopt;
}

}  // namespace

void check_predicts_masks(const models::Processor& processor, const std::string& checkpoint) {
  if (processor.predicts_masks()) return;
  throw usage_error("--mask-out: the model of {} predicts no masks; omit the option, or give a checkpoint of prs_med",
                    checkpoint);
}

void check_mask_folder(const std::string& folder) {
  std::error_code error;
  if (!fs::exists(folder, error)) return;
  if (!fs::is_directory(folder, error)) {
    throw usage_error("--mask-out: {} is not a folder; give an existing or a new folder", folder);
  }
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const fs::path name = entry.path().filename();
    if (name == kOverlayFileName || parse_mask_number(name)) continue;
    throw usage_error(
        "--mask-out: {} contains {}, which is not a mask of an earlier answer, so nothing is written there; give a new "
        "or empty folder",
        folder, to_printable(name.string()));
  }
  if (error) throw usage_error("--mask-out: {} cannot be read: {}; give another folder", folder, error.message());
}

std::vector<std::string> make_mask_paths(const std::string& folder, size_t num_masks) {
  std::vector<std::string> files;
  for (size_t i = 1; i <= num_masks; ++i) files.push_back((fs::path(folder) / fmt::format("mask_{}.png", i)).string());
  return files;
}

void write_masks(const std::string& folder, const std::vector<std::string>& files, const at::Tensor& image,
                 const std::vector<at::Tensor>& masks, const std::vector<at::Tensor>& true_masks) {
  create_mask_folder(folder);
  for (size_t i = 0; i < masks.size(); ++i) io::write_file(files[i], image::encode_mask_png(masks[i]));
  io::write_file(fs::path(folder) / kOverlayFileName,
                 image::encode_png(image::draw_mask_comparison(image, masks, true_masks)));
  std::vector<fs::path> stale_files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const auto number = parse_mask_number(entry.path().filename());
    if (number && *number > std::ssize(masks)) stale_files.push_back(entry.path());
  }
  for (const fs::path& file : stale_files) fs::remove(file);
}

void create_mask_folder(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw run_error("--mask-out: {} cannot be created: {}; give another folder", folder, error.message());
}

namespace {

namespace fs = std::filesystem;

/// Bytes of a sample's id in a file name, which file systems limit to 255 bytes. Not tuned.
constexpr size_t kMaxIdBytes = 120;

bool is_file_name_character(char character) {
  return (character >= 'a' && character <= 'z') || (character >= 'A' && character <= 'Z') ||
         (character >= '0' && character <= '9') || character == '.' || character == '-' || character == '_';
}

}  // namespace

MaskOverlayWriter::MaskOverlayWriter(std::string folder) : folder_(std::move(folder)) {
  std::error_code error;
  if (fs::exists(folder_, error) && (!fs::is_directory(folder_, error) || !fs::is_empty(folder_, error))) {
    throw usage_error(
        "--mask-out: {} exists and is not an empty folder; files are named after sample ids and could overwrite the "
        "files in it; give a new or empty folder",
        folder_);
  }
}

std::string MaskOverlayWriter::make_unique_file_name(const std::string& id) {
  std::string file_stem = id.substr(0, kMaxIdBytes);
  std::ranges::replace_if(
      file_stem, [](char character) { return !is_file_name_character(character); }, '_');
  if (file_stem.empty() || file_stem.front() == '.') file_stem.insert(file_stem.begin(), '_');
  std::string name = file_stem;
  for (int64_t number = 2; !used_file_names_.insert(name).second; ++number)
    name = fmt::format("{}_{}", file_stem, number);
  return name;
}

void MaskOverlayWriter::add(const io::Record& record, const evaluation::EvaluatedAnswer& answer) {
  if (answer.masks.empty()) return;
  create_mask_folder(folder_);
  std::map<int64_t, std::vector<const evaluation::MaskPrediction*>> masks_by_image;
  for (const auto& mask : answer.masks) masks_by_image[mask.image_index].push_back(&mask);
  for (const auto& [image_index, masks] : masks_by_image) {
    std::vector<at::Tensor> predicted_masks, true_masks;
    for (const auto* mask : masks) {
      predicted_masks.push_back(mask->predicted_mask);
      true_masks.push_back(mask->true_mask);
    }
    const at::Tensor image = image::decode_image(record.images.at(static_cast<size_t>(image_index)));
    io::write_file(fs::path(folder_) / (make_unique_file_name(answer.id) + ".png"),
                   image::encode_png(image::draw_mask_comparison(image, predicted_masks, true_masks)));
    ++num_written_images_;
  }
}

}  // namespace vlmtrain::app
