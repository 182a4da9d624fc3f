#pragma once

#include "vlmtrain/io/safetensors.h"
