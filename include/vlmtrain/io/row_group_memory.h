#pragma once

#include "vlmtrain/io/dataset_file.h"
