#include "data/index/sample_index_cache.h"

#include <sys/stat.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <bit>
#include <exception>
#include <system_error>

#include "vlmtrain/base/log.h"
#include "vlmtrain/data/sample/sample_shape.h"

namespace vlmtrain::data {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

/// Version of the format. Increase it whenever a sample of an unchanged record and unchanged files
/// may get another shape.
constexpr int64_t kCacheFormatVersion = 13;

uint64_t to_nanoseconds(const timespec& time) {
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

/// Adds the name, size and times of a file or, for a folder, of the files in it. Programs cannot
/// set the ctime, so that it also reveals a replacement with equal size and mtime.
void add_file_state_to_hash(ContentHash& hash, const fs::path& file) {
  struct stat status {};
  hash.add(file.native());
  if (stat(file.c_str(), &status) != 0) return;
  hash.add(static_cast<uint64_t>(status.st_size))
      .add(to_nanoseconds(status.st_mtim))
      .add(to_nanoseconds(status.st_ctim));
  if (!S_ISDIR(status.st_mode)) return;
  std::vector<fs::path> frames;
  std::error_code error;
  for (fs::directory_iterator entry(file, error), end; !error && entry != end; entry.increment(error)) {
    if (!entry->is_directory(error)) frames.push_back(entry->path());
  }
  std::ranges::sort(frames);
  for (const auto& frame : frames) {
    struct stat frame_status {};
    hash.add(frame.native());
    if (stat(frame.c_str(), &frame_status) != 0) continue;
    hash.add(static_cast<uint64_t>(frame_status.st_size))
        .add(to_nanoseconds(frame_status.st_mtim))
        .add(to_nanoseconds(frame_status.st_ctim));
  }
}

void add_media_to_hash(ContentHash& hash, const io::MediaRef& medium) {
  hash.add(medium.frames.size());
  for (const auto& frame : medium.frames) add_media_to_hash(hash, frame);
  hash.add(medium.bytes ? medium.path : normalize_path(medium.path))
      .add(medium.bytes ? 1U : 0U)
      .add(medium.is_volume ? 1U : 0U)
      .add(medium.modality);
  if (medium.bytes) hash.add(*medium.bytes);
  if (medium.fps != 0) hash.add(std::bit_cast<uint64_t>(medium.fps));
}

void add_rle_to_hash(ContentHash& hash, const io::Rle& rle) {
  hash.add(static_cast<uint64_t>(rle.height)).add(static_cast<uint64_t>(rle.width)).add(rle.counts.size());
  for (const int64_t count : rle.counts) hash.add(static_cast<uint64_t>(count));
}

/// Adds nothing if there are no values.
void add_template_values_to_hash(ContentHash& hash, const std::vector<io::TemplateValue>& values) {
  for (const auto& value : values) hash.add(value.name).add(value.json);
}

void append_file_paths(const io::MediaRef& medium, std::vector<std::string>& files) {
  for (const auto& frame : medium.frames) append_file_paths(frame, files);
  if (!medium.bytes && medium.frames.empty()) files.push_back(medium.path);
}

/// Returns {"of_record": num_record_notices, "kinds": [kind id, example, kind id, example, …]}.
Json notices_to_json(const CachedSample& cached) {
  Json kinds = Json::array();
  for (const auto& [kind, example] : cached.notices) kinds.insert(kinds.end(), {kind, example});
  return {{"of_record", cached.num_record_notices}, {"kinds", std::move(kinds)}};
}

void parse_cached_notices(const Json& json, CachedSample& cached) {
  cached.num_record_notices = json.at("of_record");
  const Json& kinds = json.at("kinds");
  for (size_t i = 0; i + 1 < kinds.size(); i += 2) cached.notices.push_back({kinds[i], kinds[i + 1]});
}

/// Returns a sample as an array. To keep most lines short, the fields of rows that are not RGB
/// bytes, of masks, of label weights (true) and of notices are appended only if they are set, in this
/// order.
Json to_json_array(const CachedSample& cached) {
  const SampleShape& shape = cached.shape;
  Json grids = Json::array();
  for (const auto& grid : shape.patch_grids) grids.insert(grids.end(), {grid.frames, grid.rows, grid.columns});
  Json fields = Json::array({cached.fingerprint, cached.file_state_hash, shape.tokens, shape.label_tokens,
                             shape.image_tokens, shape.num_images, shape.pixel_rows, shape.row.height, shape.row.width,
                             shape.num_videos, shape.video_frames, cached.decode_bytes, shape.has_position_axes ? 1 : 0,
                             std::move(grids), cached.id, cached.task, cached.files,
                             cached.shrink_info ? to_json_array(*cached.shrink_info) : Json()});
  const PixelRowShape& row = shape.row;
  const bool has_masks = shape.masks > 0;
  if (has_masks || shape.num_volumes > 0 || row != PixelRowShape{.height = row.height, .width = row.width}) {
    fields.push_back({row.dtype, row.channels, row.depth, shape.num_volumes});
  }
  if (has_masks) fields.push_back({shape.masks, shape.num_images_with_masks, shape.mask_image_size});
  if (shape.has_label_weights) fields.push_back(true);
  if (!cached.notices.empty()) fields.push_back(notices_to_json(cached));
  return fields;
}

/// Parses the result of to_json_array(). Throws nlohmann::json::exception for other values.
CachedSample parse_cached_sample(const Json& json) {
  CachedSample cached{.fingerprint = json.at(0), .file_state_hash = json.at(1)};
  SampleShape& shape = cached.shape;
  int64_t has_position_axes = 0;
  int64_t* const fields[] = {&shape.tokens,       &shape.label_tokens,  &shape.image_tokens, &shape.num_images,
                             &shape.pixel_rows,   &shape.row.height,    &shape.row.width,    &shape.num_videos,
                             &shape.video_frames, &cached.decode_bytes, &has_position_axes};
  size_t i = 2;
  for (int64_t* field : fields) *field = json.at(i++);
  shape.has_position_axes = has_position_axes != 0;
  const Json& grids = json.at(i);
  for (size_t grid = 0; grid < grids.size(); grid += 3) {
    shape.patch_grids.push_back({grids.at(grid), grids.at(grid + 1), grids.at(grid + 2)});
  }
  cached.id = json.at(++i);
  cached.task = json.at(++i);
  cached.files = json.at(++i).get<std::vector<std::string>>();
  if (const Json& shrunk = json.at(++i); !shrunk.is_null()) cached.shrink_info = parse_shrink_info(shrunk);
  const bool has_notices = json.back().is_object();
  if (has_notices) parse_cached_notices(json.back(), cached);
  size_t end = json.size() - (has_notices ? 1 : 0);
  shape.has_label_weights = json.at(end - 1).is_boolean();
  if (shape.has_label_weights) --end;
  if (end > ++i) {
    const Json& volume_fields = json.at(i);
    shape.row.dtype = volume_fields.at(0);
    shape.row.channels = volume_fields.at(1);
    shape.row.depth = volume_fields.at(2);
    shape.num_volumes = volume_fields.at(3);
  }
  if (end > ++i) {
    const Json& masks = json.at(i);
    shape.masks = masks.at(0);
    shape.num_images_with_masks = masks.at(1);
    shape.mask_image_size = masks.at(2);
  }
  return cached;
}

Json make_cache_header(const std::string& key, uint64_t version_hash, int64_t samples) {
  return {{"format", kCacheFormatVersion}, {"key", key}, {"stamp", version_hash}, {"samples", samples}};
}

/// The body of a file, after the header, is hashed in blocks of this size, which are part of the
/// format, since ContentHash depends on them. The hash is the last line: 16 hexadecimal digits and
/// a line break.
constexpr size_t kHashBlockBytes = size_t{1} << 20U;
constexpr std::streamoff kHashLineBytes = 17;

}  // namespace

uint64_t compute_record_fingerprint(const io::Record& record) {
  ContentHash hash;
  if (!record.problem.empty()) hash.add(record.problem);
  hash.add(record.turns.size());
  for (const auto& turn : record.turns) {
    hash.add(static_cast<uint64_t>(turn.role)).add(turn.text);
    for (const size_t mark : turn.literal_placeholder_offsets) hash.add(static_cast<uint64_t>(mark));
    if (!turn.has_content) hash.add("no content");
    if (turn.loss_weight != 1) hash.add("weight").add(uint64_t{std::bit_cast<uint32_t>(turn.loss_weight)});
    add_template_values_to_hash(hash, turn.fields);
  }
  add_template_values_to_hash(hash, record.template_variables);
  for (const auto* media : {&record.images, &record.videos}) {
    hash.add(media->size());
    for (const auto& medium : *media) add_media_to_hash(hash, medium);
  }
  io::add_objects_to_hash(hash, record.objects);
  hash.add(record.mask_problem).add(record.masks.size());
  for (const auto& mask : record.masks) {
    add_media_to_hash(hash, mask.file);
    if (mask.rle) add_rle_to_hash(hash, *mask.rle);
    hash.add(mask.structure).add(static_cast<uint64_t>(mask.image_index));
    hash.add(mask.value ? "value" : "").add(static_cast<uint64_t>(mask.value.value_or(0)));
  }
  if (record.window)
    hash.add(static_cast<uint64_t>(record.window->index)).add(static_cast<uint64_t>(record.window->tokens));
  return hash.value();
}

std::vector<std::string> list_record_files(const io::Record& record) {
  std::vector<std::string> files;
  for (const auto* media : {&record.images, &record.videos}) {
    for (const auto& medium : *media) append_file_paths(medium, files);
  }
  for (const auto& mask : record.masks) {
    if (!mask.rle) append_file_paths(mask.file, files);
  }
  return files;
}

uint64_t compute_file_state_hash(const std::vector<std::string>& files) {
  ContentHash hash;
  for (const auto& file : files) add_file_state_to_hash(hash, file);
  return hash.value();
}

std::string normalize_path(const std::string& path) {
  if (path.empty()) return path;
  static const std::string kCurrentFolder = fs::absolute(".").lexically_normal().string();
  const bool is_normalized = path.find("//") == std::string::npos && path.find("./") == std::string::npos &&
                             !path.ends_with("/.") && !path.ends_with("/..") && !path.empty();
  if (is_normalized) return path.front() == '/' ? path : kCurrentFolder + path;
  return fs::absolute(path).lexically_normal().string();
}

NoticeKindTable::NoticeKindTable(std::vector<std::string> names) : names_(std::move(names)) {
  for (size_t i = 0; i < names_.size(); ++i) ids_by_name_.try_emplace(names_[i], static_cast<int64_t>(i));
}

int64_t NoticeKindTable::find_or_add(const std::string& name) {
  const auto [entry, is_new] = ids_by_name_.try_emplace(name, size());
  if (is_new) names_.push_back(name);
  return entry->second;
}

std::optional<int64_t> NoticeKindTable::find(const std::string& name) const {
  const auto match = ids_by_name_.find(name);
  return match == ids_by_name_.end() ? std::nullopt : std::optional(match->second);
}

std::string to_cache_line(const std::optional<CachedSample>& sample) {
  return sample ? to_json_array(*sample).dump(-1, ' ', false, Json::error_handler_t::replace) : "null";
}

std::optional<CachedSample> parse_cache_line(std::string_view line, int64_t kinds) {
  const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_array()) return std::nullopt;
  try {
    auto sample = parse_cached_sample(json);
    const auto is_valid_kind = [kinds](const CachedNotice& notice) { return notice.kind >= 0 && notice.kind < kinds; };
    if (!std::ranges::all_of(sample.notices, is_valid_kind)) return std::nullopt;
    return sample;
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

SampleIndexCacheReader::SampleIndexCacheReader(const fs::path& file, const std::string& key) {
  read_header(file, key);
  if (num_samples_ > 0 && verify_hash()) {
    stream_.clear();
    stream_.seekg(body_offset_);
  } else {
    version_hash_ = 0;
    num_samples_ = 0;
  }
}

void SampleIndexCacheReader::read_header(const fs::path& file, const std::string& key) {
  std::error_code error;
  if (!fs::is_regular_file(file, error)) return;
  stream_.open(file, std::ios::binary);
  // A longer line is not the header of a cache file.
  std::string line(10'000, '\0');
  if (!stream_.getline(line.data(), std::ssize(line))) return;
  line.resize(static_cast<size_t>(stream_.gcount()) - 1);
  const Json header = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  const auto read_header_field = [&header](const char* name) -> uint64_t {
    return header.is_object() && header.contains(name) && header[name].is_number_unsigned()
               ? header[name].get<uint64_t>()
               : 0;
  };
  const auto samples = static_cast<int64_t>(read_header_field("samples"));
  if (line != make_cache_header(key, read_header_field("stamp"), samples).dump()) return;
  version_hash_ = read_header_field("stamp");
  num_samples_ = samples;
  body_offset_ = stream_.tellg();
}

bool SampleIndexCacheReader::verify_hash() {
  stream_.seekg(0, std::ios::end);
  const std::streamoff end = stream_.tellg() - kHashLineBytes;
  auto remaining_bytes = end - body_offset_;
  if (remaining_bytes < 0) return false;
  stream_.seekg(body_offset_);
  ContentHash hash;
  hash.add(version_hash_);
  std::streamoff last_line_offset = body_offset_;
  for (std::string block; remaining_bytes > 0; remaining_bytes -= std::ssize(block)) {
    block.resize(std::min(kHashBlockBytes, static_cast<size_t>(remaining_bytes)));
    if (!stream_.read(block.data(), std::ssize(block))) return false;
    hash.add(block);
    // The last line break of the body ends its last line; the one before it starts that line.
    const bool is_last_block = remaining_bytes == std::ssize(block);
    const size_t line_break_position = is_last_block && block.size() == 1
                                           ? std::string::npos
                                           : block.rfind('\n', block.size() - (is_last_block ? 2 : 1));
    if (line_break_position != std::string::npos)
      last_line_offset = end - remaining_bytes + static_cast<std::streamoff>(line_break_position) + 1;
  }
  std::string line;
  if (!std::getline(stream_, line) || line != hash.to_hex()) return false;
  return read_notice_kinds(last_line_offset);
}

/// Reads the kinds from the last line of the body, after the lines of the samples.
bool SampleIndexCacheReader::read_notice_kinds(std::streamoff offset) {
  stream_.seekg(offset);
  std::string line;
  std::getline(stream_, line);
  const Json names = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  const auto is_string = [](const Json& name) { return name.is_string(); };
  if (!names.is_array() || !std::ranges::all_of(names, is_string)) return false;
  kinds_ = NoticeKindTable(names.get<std::vector<std::string>>());
  return true;
}

std::string SampleIndexCacheReader::next() {
  std::string line;
  if (num_read_lines_ < num_samples_ && std::getline(stream_, line)) ++num_read_lines_;
  return line;
}

void SampleIndexCacheReader::copy_lines(SampleIndexCacheWriter& writer, int64_t num_skipped) {
  if (num_read_lines_ <= num_skipped) return;
  const auto offset = stream_.tellg();
  stream_.seekg(body_offset_);
  std::string line;
  for (int64_t i = 0; i < num_read_lines_ - num_skipped && std::getline(stream_, line); ++i) writer.add(line);
  stream_.seekg(offset);
}

SampleIndexCacheWriter::SampleIndexCacheWriter(const fs::path& file, const std::string& key, uint64_t version_hash,
                                               int64_t samples)
    : path_(file) {
  try_write([&] {
    file_.emplace(file);
    file_->write(make_cache_header(key, version_hash, samples).dump() + "\n");
  });
  body_hash_.add(version_hash);
}

void SampleIndexCacheWriter::add(std::string_view line) {
  pending_lines_ += line;
  pending_lines_ += '\n';
  while (pending_lines_.size() >= kHashBlockBytes) write_block();
}

void SampleIndexCacheWriter::commit(const NoticeKindTable& kinds) {
  add(Json(kinds.names()).dump(-1, ' ', false, Json::error_handler_t::replace));
  if (!pending_lines_.empty()) write_block();
  if (!file_) return;
  try_write([&] {
    file_->write(body_hash_.to_hex() + "\n");
    file_->commit();
  });
}

void SampleIndexCacheWriter::write_block() {
  const auto block = std::string_view(pending_lines_).substr(0, kHashBlockBytes);
  body_hash_.add(block);
  if (file_) try_write([&] { file_->write(block); });
  pending_lines_.erase(0, block.size());
}

template <class Action>
void SampleIndexCacheWriter::try_write(const Action& action) {
  try {
    action();
  } catch (const std::exception& error) {
    file_.reset();
    spdlog::info("{}: the index of the data cannot be cached ({}); the next start reads the data again", path_.string(),
                 error.what());
  }
}

}  // namespace vlmtrain::data
