#pragma once
#include "vlmtrain/text/template_source.h"
