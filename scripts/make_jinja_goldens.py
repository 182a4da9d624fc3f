#!/usr/bin/env python3
"""Writes tests/text/data/jinja_goldens.json: the output of jinja2, as transformers configures it, for snippets and for
templates in the style of public ones. Needs `pip install jinja2==3.1.6` and Python 3.11 (Unicode 14).

    scripts/make_jinja_goldens.py
"""
import json
import pathlib

import jinja_reference

DATA = pathlib.Path(__file__).parent.parent / "tests" / "text" / "data"

VARIABLES = {
    "n": 7, "neg": -3, "f": 2.5, "yes": True, "no": False, "nothing": None, "s": "Hello, Wörld", "empty": "", "l": [3, 1, 2],
    "d": {"b": 1, "a": "x", "items": "own"}, "words": ["beta", "Alpha", "gamma", "alpha"], "emoji": "a🐈‍⬛é",
    "people": [{"name": "Ann", "age": 30, "on": True}, {"name": "bob", "age": 25, "on": False},
               {"name": "Cy", "age": 30, "on": True}],
    "deep": {"x": [{"y": {"z": "found"}}]}, "lines": "one\ntwo\r\n\n  three\x0bfour", "mixed": [1, "a", None, True, 2.0],
    "html": "<a href=\"x\">'&'</a>", "padded": "  \t padded \n", "tools": None, "big": 9007199254740993,
}

SNIPPETS = r"""
{{ 1 + 2 * 3 - 4 }} {{ 7 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 % -3 }}
{{ 2 ** 10 }} {{ 2 ** -1 }} {{ -2 ** 2 }} {{ 2 ** 3 ** 2 }} {{ 4 ** 0.5 }}
{{ 7.5 // 2 }} {{ -7.5 // 2 }} {{ 7.5 % 2 }} {{ -7.5 % 2 }} {{ 1 / 3 }}
{{ 0.1 + 0.2 }} {{ 1e16 }} {{ 1e15 }} {{ 1.0 }} {{ 1e-5 }} {{ 0.0001 }} {{ 123456789.125 }} {{ 1e300 * 10 }}
{{ 1_000 }} {{ 0x1F }} {{ 0b101 }} {{ 0o17 }} {{ 1_0.5e1 }}
{{ true + true }} {{ true == 1 }} {{ 1 == 1.0 }} {{ '1' == 1 }} {{ big }} {{ big == 9007199254740992.0 }}
{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 3 > 2 >= 2 != 1 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ (1,) < (1, 0) }}
{{ 1 < 'a' }}
{{ none < 1 }}
{{ 'a' ~ 1 ~ none ~ true ~ 2.0 ~ [1, 'x'] }}
{{ 'a' + 'b' * 3 }} {{ 3 * 'ab' }} {{ [1] * 3 }} {{ 'a' * -1 }} {{ [1] + [2, 3] }} {{ (1, 2) + (3,) }}
{{ 'a' + 1 }}
{{ [1] + (2,) }}
{{ nothing + 1 }}
{{ missing + 1 }}
{{ 1 / 0 }}
{{ 'ell' in s }} {{ 'x' not in s }} {{ 1 in l }} {{ 'a' in d }} {{ 'z' in d }} {{ 5 in missing }} {{ '' in '' }}
{{ 1 in 'a1' }}
{{ 1 in 5 }}
{{ yes and 'right' }} {{ no or 'other' }} {{ '' or 0 or [] }} {{ 1 and 2 and 3 }} {{ not 1 }} {{ not '' }} {{ not not 5 }}
{{ 'yes' if yes else 'no' }} {{ 'yes' if no else 'no' }} [{{ 'yes' if no }}] {{ 1 if no else 2 if no else 3 }}
{{ ('yes' if no) is defined }}
{{ none }} {{ None }} {{ true }} {{ True }} {{ false }} {{ [] }} {{ {} }} {{ () }} {{ (1,) }} {{ 1, 2 }}
{{ missing }}|{{ missing.x is defined }}
{{ missing.x }}
{{ missing['x'] }}
{{ missing() }}
{{ d.missing }}|{{ d.missing.x }}
{{ d.missing }}|{{ d['zzz'] }}|{{ l[10] }}|{{ s.nope }}|{{ n.nope }}|{{ nothing.nope }}|{{ nothing['a'] }}
{{ d.a }} {{ d['a'] }} {{ d['items'] }} {{ d.items is callable }} {{ d.keys is callable }}
{{ d.items() | list }}
{{ people[0].items() | list }} {{ people[0].keys() | list }} {{ people[0].values() | list }} {{ people[0].keys() }}
{{ people[0].get('name') }} {{ people[0].get('x') }} {{ people[0].get('x', 'dflt') }} {{ people[0]['get']('age') }}
{{ people[0].pop('name') }}
{{ people[0].update({'a': 1}) }}
{{ l.append(4) }}
{{ l.sort() }}
{{ people[0].pop is defined }} {{ l.append is defined }} {{ l.__class__ is defined }} {{ s.__class__ }}
{{ l.index(1) }} {{ l.count(3) }} {{ (1, 2, 2).count(2) }}
{{ l.index(9) }}
{{ l[0] }} {{ l[-1] }} {{ l.0 }} {{ l[0:2] }} {{ l[::-1] }} {{ l[1:] }} {{ l[:-1] }} {{ l[::2] }} {{ l[5:] }} {{ l[-100:100] }}
{{ s[0] }} {{ s[-1] }} {{ s[1:4] }} {{ s[::-1] }} {{ s[7:] }} {{ s[8] }} {{ s[-5:-1] }} {{ s[::3] }} {{ s[10:2:-2] }}
{{ emoji[1] }} {{ emoji[::-1] }} {{ emoji | length }} {{ emoji[1:3] }} {{ emoji[-1] }} {{ emoji[4:0:-2] }}
{{ l[::0] }}
{{ nothing[1:] }}
{{ d[1:] }}
{{ l['a':] }}
{{ l[true] }} {{ (1, 2, 3)[1:] }} {{ range(5)[1:3] | list }} {{ range(5)[-1] }}
{{ deep.x[0].y.z }} {{ deep['x'][0]['y'].z }}
{{ 'a\nb\tc\\d\'e"f' }} {{ "q'\"x" }} {{ '\x41\u00e9\U0001F408\101\0z' | length }} {{ '\q\z' }} {{ 'con' 'cat' "ed" }}
{{ '\u00e9' }}{{ '\x41' }}{{ '\101' }}{{ 'a\
b' }}
{{ 'open }}
{{ '\x4' }}
{{ [1, 'it''s', "q'q", 'd"d', 'b\\n', '\n\t', none, true, 1.5, {'k': [()]}] }}
{{ ["\u200d\x7f\u00ad\ue000é", "\u2028", "\U0001F408"] }}
{{ {'a': 1, 'b': 'x', 1: 2, none: 3} }} {{ {'a': 1, 'a': 2} }} {{ {1: 'x', true: 'y', 1.0: 'z'} }}
{{ {[1]: 2} }}
{{ {'a': {'b': {'c': 1}}}}}
{{ d == {'items': 'own', 'a': 'x', 'b': 1} }} {{ [1, 2] == (1, 2) }} {{ [] == [] }} {{ missing == nope }} {{ none == false }}
{{ l is defined }} {{ missing is undefined }} {{ nothing is none }} {{ s is string }} {{ d is mapping }} {{ l is sequence }}
{{ d is sequence }} {{ s is sequence }} {{ n is sequence }} {{ s is iterable }} {{ n is iterable }} {{ missing is iterable }}
{{ n is number }} {{ yes is number }} {{ n is integer }} {{ yes is integer }} {{ f is float }} {{ yes is boolean }}
{{ yes is true }} {{ 1 is true }} {{ no is false }} {{ n is odd }} {{ n is even }} {{ n is divisibleby 7 }} {{ n is divisibleby(2) }}
{{ n is eq 7 }} {{ n is equalto(7) }}
{{ n is == 7 }}
{{ n is ne 7 }} {{ n is lt 8 }} {{ n is gt 8 }} {{ n is le(7) }} {{ n is ge 7 }} {{ n is lessthan 8 }} {{ n is greaterthan 6 }}
{{ n is in [7] }} {{ 'a' is in 'abc' }} {{ n is not in [7] }} {{ n is not none }} {{ s is not string }}
{{ 'abc' is lower }} {{ 'ABC' is upper }} {{ 'Abc' is lower }} {{ raise_exception is callable }} {{ n is callable }}
{{ none is sameas none }} {{ l is sameas l }} {{ 'trim' is filter }} {{ 'nope' is filter }} {{ 'odd' is test }}
{{ n is odd is odd }}
{{ yes is not defined or no is defined and n is odd }}
{{ padded | trim }}| {{ 'xxaxx' | trim('x') }} {{ s | upper }} {{ s | lower }} {{ 'hELLO wORLD' | capitalize }} {{ 'éA' | capitalize }}
{{ "it's a-b (c) [d] {e} <f>\tg" | title }} {{ "it's o'neil 3rd" | title }}
{{ 'straße ŉ ﬁ İ ΑΣ ΑΣΑ Σ' | upper }} {{ 'STRASSE İ ΑΣ ΑΣΑ Σ' | lower }}
{{ l | join(', ') }} {{ l | join }} {{ people | join('-', attribute='name') }} {{ mixed | join('|') }} {{ 'abc' | join('.') }}
{{ 'aXbXc' | replace('X', '-') }} {{ 'aXbXc' | replace('X', '-', 1) }} {{ 'abc' | replace('', '.') }} {{ 123 | replace(2, 'x') }}
{{ l | length }} {{ s | length }} {{ d | length }} {{ missing | length }} {{ '' | count }}
{{ n | length }}
{{ l | first }} {{ l | last }} {{ s | first }} {{ s | last }} [{{ [] | first }}] [{{ '' | last }}] {{ d | first }} {{ d | last }}
{{ (l | map('string')) | last }}
{{ 'abc' | list }} {{ d | list }} {{ (1, 2) | list }} {{ range(3) | list }} {{ missing | list }} {{ people[0].items() | list }}
{{ missing | default('x') }} {{ nothing | default('x') }} {{ nothing | default('x', true) }} {{ '' | d('y', boolean=true) }} [{{ missing | d }}]
{{ d | tojson }} {{ mixed | tojson }} {{ people | tojson(indent=2) }}
{{ {'b': [], 'a': {}, 'c': [1]} | tojson(indent=4, sort_keys=true) }} {{ [1, 2] | tojson(separators=(',', ':')) }}
{{ "é\"\\\n\r\t\x08\x0c\x01\x7f/🐈" | tojson }} {{ "é🐈\x7f" | tojson(ensure_ascii=true) }} {{ html | tojson }}
{{ [1.0, 1e20, 1e-7, -0.0, 0.1, 1e400, -1e400] | tojson }} {{ {1: 2, true: 3, none: 4, 1.5: 5} | tojson }}
{{ [1, [2, {'a': [3]}]] | tojson(indent=1) }} {{ [1] | tojson(indent='--') }} {{ (1, 2) | tojson }} {{ [1] | tojson(indent=0) }}
{{ missing | tojson }}
{{ range(3) | tojson }}
{{ people | selectattr('on') | map(attribute='name') | list }} {{ people | rejectattr('on') | map(attribute='name') | join(',') }}
{{ people | selectattr('age', 'equalto', 30) | list | length }} {{ people | selectattr('age', '>', 26) | map(attribute='name') | list }}
{{ people | rejectattr('name', 'in', ['Ann']) | map(attribute='name') | list }} {{ people | selectattr('x', 'defined') | list }}
{{ mixed | select('string') | list }} {{ mixed | select | list }} {{ mixed | reject('none') | list }} {{ l | select('odd') | list }}
{{ people | map(attribute='nope', default='?') | list }} {{ words | map('upper') | list }} {{ words | map('replace', 'a', '4') | join(' ') }}
{{ people | map(attribute='nope') | list }} {{ deep.x | map(attribute='y.z') | list }} {{ [[1, 2], [3, 4]] | map(attribute=1) | list }}
{{ (people | selectattr('on', 'equalto', 'never')) is defined }} {{ 'full' if people | selectattr('on', 'equalto', 'never') }}
{{ (people | selectattr('on')) | length }}
{{ (people | selectattr('on'))[0] is defined }}
{% set g = people | map(attribute='name') %}{{ g | list }}{{ g | list }}
{{ people | selectattr('name', 'nosuchtest') | list }}
{{ s | nosuchfilter }}
{{ s is nosuchtest }}
{{ nosuchfunction() }}
{% if no %}{{ s | nosuchfilter }}{% endif %}ok{{ (s | nosuchfilter) if no else '!' }}
{% if yes %}{{ s | nosuchfilter }}{% endif %}
{% if no %}{{ nosuchfunction(1) }}{% endif %}ok
{{ d | items | list }} {{ missing | items | list }}
{{ l | items | list }}
{{ d | dictsort }} {{ {'B': 1, 'a': 2} | dictsort }} {{ {'B': 1, 'a': 2} | dictsort(true) }} {{ {'a': 2, 'b': 1} | dictsort(by='value') }} {{ {'a': 1, 'b': 2} | dictsort(reverse=true) }}
{{ l | sort }} {{ words | sort }} {{ words | sort(case_sensitive=true) }} {{ words | sort(reverse=true) }} {{ people | sort(attribute='age') | map(attribute='name') | list }}
{{ people | sort(attribute='age,name', reverse=true) | map(attribute='name') | list }} {{ [[2, 1], [1, 2]] | sort }}
{{ [1, 'a'] | sort }}
{{ words | unique | list }} {{ words | unique(true) | list }} {{ people | unique(attribute='age') | map(attribute='name') | list }} {{ [1, 1.0, true, '1'] | unique | list }}
{{ l | reverse | list }} {{ s | reverse }} {{ (l | reverse) is string }} {{ emoji | reverse }} {{ range(3) | reverse | list }} {{ d | reverse | list }}
{{ 'a\nb\n\nc' | indent }}|{{ 'a\nb' | indent(2, true) }}|{{ 'a\n\nb' | indent(1, blank=true) }}|{{ 'a\nb' | indent('>> ') }}|{{ 'a\r\nb\n' | indent(first=true) }}|{{ '' | indent(first=true) }}
{{ n | indent }}
{{ n | string + '!' }} {{ '42' | int + 1 }} {{ '4.7' | int }} {{ 'x' | int }} {{ 'x' | int(9) }} {{ 4.9 | int }} {{ -4.9 | int }} {{ 'ff' | int(0, 16) }} {{ '0x1f' | int(base=16) }} {{ none | int }} {{ ' 12_3 ' | int }} {{ true | int }}
{{ '2.5' | float }} {{ 'x' | float }} {{ 3 | float }} {{ 'x' | float(1.5) }} {{ ' 1e3 ' | float }} {{ 'inf' | float }} {{ 'nan' | float }}
{{ missing | int }}
{{ missing | string }}|{{ missing | trim }}|{{ missing | upper }}|{{ missing | join(',') }}|{{ missing ~ 'x' }}
{{ 2.5 | round }} {{ 3.5 | round }} {{ 2.675 | round(2) }} {{ 1234.5 | round(-2) }} {{ 2.4 | round(method='ceil') }} {{ 2.6 | round(0, 'floor') }} {{ 7 | round }} {{ 15 | round(-1) }} {{ 25 | round(-1) }} {{ 2.345 | round(2, 'ceil') }}
{{ -3 | abs }} {{ neg | abs }} {{ (-2.5) | abs }} {{ l | min }} {{ l | max }} {{ words | min }} {{ words | max }} {{ people | max(attribute='age') }} [{{ [] | max }}] {{ l | sum }} {{ people | sum(attribute='age') }} {{ [[1], [2]] | sum(start=[]) }} {{ [0.1, 0.2] | sum }}
{{ 'a' | abs }}
{{ range(7) | batch(3) | list }} {{ range(7) | batch(3, 'x') | list }} {{ range(7) | slice(3) | list }} {{ range(7) | slice(3, 'x') | list }}
{% for g in people | groupby('age') %}{{ g.grouper }}:{{ g.list | map(attribute='name') | join(',') }};{% endfor %}{% for k, v in words | groupby(0) %}{{ k }}={{ v | join('+') }} {% endfor %}
{{ html | e }} {{ html | escape }} {{ html | safe }} {{ html | e | e }} {{ '<' | safe + '<' }} {{ '<' + '<' | e }} {{ '<' | e ~ '<' }} {{ html | forceescape }}
{{ '%s is %d and %5.2f|%-5s|%05d|%x|%%' | format('a', 3, 2.5, 'b', 42, 255) }} {{ '%(a)s-%(b)r' | format(a=1, b='x') }} {{ 'x%s' % 'y' }} {{ '%s %s' % ('a', [1]) }} {{ '%r' % 'q' }} {{ '%.3s|%5s|%c' % ('abcdef', 'é', 'z') }} {{ '%+d % d %e %g' % (1, 2, 3.0, 0.5) }}
{{ '%s %s' % 'a' }}
{{ '%s' % ('a', 'b') }}
{{ '%d' % 'a' }}
{{ 'one two-three  4' | wordcount }} {{ 'a b/c?é&' | urlencode }} {{ {'a b': 'c/d', 'x': 1} | urlencode }} {{ 'x' | center(5) }}| {{ 'foo bar baz qux' | truncate(9) }} {{ 'foo bar baz qux' | truncate(9, true, '..', 0) }} {{ 'foo bar' | truncate(5) }}
{{ s | attr('upper') is defined }} {{ d | attr('a') is defined }}
{{ ' a b '.strip() }}|{{ 'xxaxy'.strip('xy') }}|{{ ' a '.lstrip() }}|{{ ' a '.rstrip() }}|{{ 'abcba'.lstrip('ab') }}|{{ 'a\n\n'.rstrip('\n') }}|{{ '\u3000a\x1f'.strip() }}|{{ '  '.strip() }}|
{{ 'a,b,,c'.split(',') }} {{ ' a  b c '.split() }} {{ 'a b c d'.split(none, 2) }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ ' a  b c '.rsplit(maxsplit=1) }} {{ 'abc'.split('x') }} {{ ''.split(',') }} {{ ''.split() }} {{ 'a<>b<>c'.split('<>')[-1] }} {{ ' a '.split(none, 0) }}
{{ 'a'.split('') }}
{{ lines.splitlines() }} {{ lines.splitlines(true) }} {{ ''.splitlines() }} {{ 'a\n'.splitlines() }} {{ 'a\x85b\u2028c'.splitlines() }}
{{ s.startswith('Hell') }} {{ s.startswith(('x', 'H')) }} {{ s.endswith('ld') }} {{ s.endswith(('x', 'y')) }} {{ s.startswith('W', 7) }} {{ s.endswith('o', 0, 5) }} {{ ''.startswith('') }} {{ 'a'.startswith('', 5) }}
{{ s.startswith(1) }}
{{ s.replace('l', 'L') }} {{ s.replace('l', 'L', 1) }} {{ s.upper() }} {{ s.lower() }} {{ "they're bill's 3x friends".title() }} {{ 'hELLO'.capitalize() }} {{ 'aBcß'.swapcase() }}
{{ s.find('o') }} {{ s.find('z') }} {{ s.rfind('l') }} {{ s.find('o', 5) }} {{ s.index('W') }} {{ s.rindex('o') }} {{ s.find('ö') }} {{ s.find('r') }} {{ s.count('l') }} {{ 'aaa'.count('aa') }} {{ 'abc'.count('') }} {{ s.find('') }} {{ s.rfind('') }} {{ s.find('l', -3) }} {{ s.find('', 50) }}
{{ s.index('z') }}
{{ '-'.join(['a', 'b']) }} {{ ','.join('abc') }}
{{ '-'.join([1, 2]) }}
{{ '123'.isdigit() }} {{ '12a'.isdigit() }} {{ ''.isdigit() }} {{ '²'.isdigit() }} {{ 'abc'.isalpha() }} {{ 'é1'.isalnum() }} {{ ' \t'.isspace() }} {{ 'AB1'.isupper() }} {{ 'ab1'.islower() }} {{ '1'.islower() }} {{ '½'.isnumeric() }} {{ '1'.isdecimal() }} {{ 'a1'.isidentifier() }} {{ 'é'.isascii() }} {{ 'a\n'.isprintable() }}
{{ 'prefix-x'.removeprefix('prefix-') }} {{ 'x.txt'.removesuffix('.txt') }} {{ 'x'.removesuffix('') }} {{ '7'.zfill(3) }} {{ '-7'.zfill(4) }} {{ 'a'.ljust(3, '.') }} {{ 'a'.rjust(3) }} {{ 'ab'.center(5, '*') }} {{ 'a-b-c'.partition('-') }} {{ 'a-b-c'.rpartition('-') }} {{ 'a'.partition('x') }}
{{ '{} {1} {0}'.format('a', 'b') }}
{{ '{0}-{1}-{0}'.format('a', 2) }} {{ '{x}{{}}{y!r}'.format(x=1, y='q') }} {{ '{0[a]}{0[b]}'.format(d) }} {{ '{}{}'.format(1, [2]) }}
{% for x in l %}{{ x }}{{ ',' if not loop.last }}{% endfor %} {% for x in [] %}{{ x }}{% else %}none{% endfor %} {% for x in l %}{{ x }}{% else %}none{% endfor %}
{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }};{% endfor %}
{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {{ loop.cycle('odd', 'even') }} {% endfor %}
{% for x in [1, 1, 2, 2, 1] %}{{ 'new' if loop.changed(x) else 'same' }} {% endfor %}
{% for x in l if x > 1 %}{{ loop.index }}/{{ loop.length }}:{{ x }} {% else %}none{% endfor %}{% for x in l if x > 9 %}{% else %}none{% endfor %}
{% for k, v in people[0].items() %}{{ k }}={{ v }};{% endfor %}{% for (a, (b, c)) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}{% for k in d %}{{ k }}{% endfor %}{% for c in 'aé' %}[{{ c }}]{% endfor %}
{% for a, b in [[1, 2, 3]] %}{% endfor %}
{% for x in n %}{% endfor %}
{% for x in nothing %}{% endfor %}
[{% for x in missing %}{{ x }}{% endfor %}]
{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %} {% for x in l %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %} {% for x in l %}{% continue %}{% else %}else{% endfor %} {% for x in l %}{% break %}{% else %}else{% endfor %}
{% for x in l %}{% for y in l %}{% if y == 1 %}{% break %}{% endif %}{{ x }}{{ y }} {% endfor %}{{ loop.index }};{% endfor %}
{% break %}
{% for x in l %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}
{% for x in range(2) %}{% for y in range(2) %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %} {{ range(2, 5) | list }} {{ range(5, 0, -2) | list }} {{ range(0) | list }} {{ range(3) | length }} {{ range(4)[2] }} {{ 3 in range(5) }}
{{ range(200000) | length }}
{{ range(1, 5, 0) }}
{% for loop in l %}{% endfor %}
{{ loop is defined }}{% for x in [1] %}{{ loop is defined }}{% endfor %}{{ loop is defined }}
{% for x in l recursive_typo %}{% endfor %}
{% for i in range(3) %}{% set x = i %}{{ x }}{% endfor %}[{{ x }}] {% set y = 1 %}{% for i in range(3) %}{{ y }}{% set y = i + 5 %}{{ y }} {% endfor %}{{ y }}
{% set ns = namespace(a=1, b='x') %}{% for i in range(3) %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}{{ ns.b }}{{ ns.c is defined }} {% set ns2 = namespace({'k': 1}, z=2) %}{{ ns2.k }}{{ ns2.z }}
{% set d.x = 1 %}
{% set ns = namespace(_x=1) %}
{% set ns = namespace() %}{% set ns._x = 1 %}
{% set ns = namespace(v=[]) %}{% for i in range(3) %}{% set ns.v = ns.v + [i] %}{% endfor %}{{ ns.v }} {% set ns.a, ns.b = 1, 2 %}{{ ns.a + ns.b }}
{% set a, b = 1, 2 %}{{ a }}{{ b }} {% set (c, d2) = [3, 4] %}{{ c }}{{ d2 }} {% set t = 1, 2 %}{{ t }} {% set x %}block {{ n }}{% endset %}{{ x }} {% set x | upper | trim %}  abc {% endset %}{{ x }}|
{% set a, b = 1 %}
{% set true = 1 %}
{% set x = 1 %}{% if yes %}{% set x = 2 %}{% endif %}{{ x }} {% if no %}{% set q = 1 %}{% endif %}[{{ q }}] {% set s = s ~ '!' %}{{ s }}
{% set x %}{% set inner = 1 %}{{ inner }}{% endset %}{{ x }}[{{ inner }}]
{% if no %}a{% elif n == 7 %}b{% elif yes %}c{% else %}d{% endif %}{% if '' %}x{% endif %}{% if [] %}x{% else %}y{% endif %}{% if missing %}x{% else %}z{% endif %}{% if 1, %}t{% endif %}
{% if no %}a{% elif no %}b{% endif %}|{% if nothing is none and s %}{{ 'in' }}{% endif %}
{% if yes %}open
{% endif %}
{% if yes %}a{% endfor %}
{% nosuch %}
{% include 'x' %}
{% block x %}{% endblock %}{% extends 'y' %}
{% macro m(a, b=2, c='x') %}{{ a }}{{ b }}{{ c }};{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(1, c='y') }}{{ m(b=5, a=4) }}[{{ m() }}]
{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{% endmacro %}{{ m(1, a=2) }}
{% macro m(a) %}{% endmacro %}{{ m(z=2) }}
{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 'a', k=2) }} {{ m(*[1, 2], **{'z': 3}) }} {{ m.name }}
{% macro m(x, y=x) %}{{ x }}{{ y }}{% endmacro %}{{ m(1) }} {% macro outer() %}{{ inner_m() }}{{ later }}{% endmacro %}{% macro inner_m() %}in{% endmacro %}{% set later = 'set' %}{{ outer() }}
{% macro fact(k) %}{{ 1 if k < 2 else k * (fact(k - 1) | int) }}{% endmacro %}{{ fact(10) }}
{% macro m() %}{% set leaked = 1 %}{% endmacro %}{{ m() }}[{{ leaked }}] {% macro w() %} a {% endmacro %}[{{ w() }}][{{ w() | trim }}]{{ w() + 'x' }}
{% macro wrap(t) %}<{{ t }}>{{ caller() }}</{{ t }}>{% endmacro %}{% call wrap('b') %}in {{ n }}{% endcall %} {% macro each() %}{% for i in range(2) %}{{ caller(i, 'z') }}{% endfor %}{% endmacro %}{% call(i, z) each() %}{{ i }}{{ z }},{% endcall %}
{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}{% call m() %}x{% endcall %}
{% macro m() %}x{% endmacro %}{% call m() %}y{% endcall %}
{% macro m(a=1, b) %}{% endmacro %}
{% for i in range(2) %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}[{{ m is defined }}]
{% filter upper %}abc {{ s }}{% endfilter %} {% filter replace('a', 'b') | upper %}aaa{% endfilter %}|{% filter trim %}  x  {% endfilter %}|
{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}[{{ a }}] {% with %}{% set z = 1 %}{{ z }}{% endwith %}[{{ z }}] {% set a = 5 %}{% with a = 1, b = a %}{{ b }}{% endwith %}
{% generation %}gen {{ n }}{% set gg = 1 %}{% endgeneration %}[{{ gg }}]
{% raw %}{{ not }} {% this %}{% endraw %} {%- raw -%}  x {{ y }}  {%- endraw -%}  z
{% raw %}open
{# comment #}a{#- c -#} b {#+ c +#} c{# {{ x }} {% y %} #}d
{# open
a  {{- 1 -}}  b  {{ 2 }}  c  {%- if yes -%}  d  {%- endif -%}  e
x{{-1}}y{{+1}}z{{ - 1 }}
{% print 1, 'a', n %}{{ s|upper|lower|title }}{{ (s)|upper }}{{ s . startswith ( 'H' ) }}
{{ dict(a=1, b=2) }} {{ dict([('x', 1), ('y', 2)]) }} {{ dict({'q': 1}, r=2) }}
{% set j = joiner('; ') %}{% for x in l %}{{ j() }}{{ x }}{% endfor %} {% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.next() }}
{{ strftime_now('%Y-%m-%d %d %b %B %A %a %j %H:%M:%S %y %% %-d %f|%Z|') }}
{{ raise_exception('stop ' ~ n) }}
{{ 5(1) }}
{{ }}
{{ 1 + }}
{{ (1, 2 }}
{{ 1 ] }}
{{ a b }}
{{ $ }}
{{ l | join(d=', ', nosuch=1) }}
{{ s | upper(1) }}
{{ s | replace('a') }}
{{ 'a' 'b' ~ 'c' | upper ~ 'd' }} {{ -1 | abs }} {{ (-1) | abs }} {{ not n is odd }} {{ -n is odd }} {{ 'x' in s and 'H' in s }}
{{ 1 + 2 | string }}
{{ n - 1 is even }}
{{ l | map('nosuch') | list }}
{{ [1, 2, 3] | map('string') | join('+') }} {{ ['a ', ' b'] | map('trim') | list }} {{ [[3, 1], [2]] | map('sort') | list }} {{ ['x'] | map('default', 'z') | list }}
{{ people | selectattr('name', 'eq', 'Ann') | first }} {{ (people | selectattr('name', 'eq', 'Zed') | first) is defined }} {{ people | map(attribute='name') | map('lower') | sort | join(',') }}
{{ true and missing is not defined }} {{ missing is defined and missing.x }} {{ people[0] is mapping and 'name' in people[0] }} {{ (people | first).name }} {{ people[-1]['name'][0] }}
{{ not missing }} {{ missing or 'fallback' }} {{ missing if missing else 'dflt' }} {{ missing == '' }} {{ missing is none }} {{ [missing] }} {{ missing != none }}
{{ [1, 2, 3][1:] | first }} {{ 'abc'[1:] ~ 'd' }} {{ ('a', 'b')[0] }} {{ {'a': [1, 2]}['a'][1] }} {{ {'a': 1}.a }}
{{ [x for x in l] }}
{{ "a" if s is string else "b" if l else "c" }} {{ (1 if yes else 2) + 3 }} {{ [1 if yes else 2, 3] }} {{ {'a': 1 if no else 2} }}
{{ 9223372036854775807 }} {{ -9223372036854775807 }} {{ 3037000499 * 3037000499 }}
{{ 'é' ~ 'ß' | upper }} {{ 'ÀÉ' | lower }} {{ 'ǆ' | capitalize }} {{ 'ﬁx' | capitalize }} {{ 'ﬁx'.title() }} {{ 'ᾳ' | upper }}
{{ lines | replace('\n', '|') }} {{ lines.split('\n') | length }} {{ lines | upper | trim }}
"""

BLOCKS = [
    "a\n  {% if yes %}\n  b\n  {% endif %}\nc\n", "  {% if yes %}  \nb{% endif %}\n\nc", "x {% if yes %} y {% endif %} z\n\n",
    "  {%+ if yes %}\nb{% endif +%}\nc", "  {#- c -#}\n d\n  {# e #}\n f", "\n\n  {{ n }}\n  {{ n }}\n", "a\r\n{% if yes %}\r\nb\r{% endif %}\r\n",
    "  {% raw %}\n  {{ x }}\n  {% endraw %}\n z", "a\n{% for x in l %}\n  {{ x }}\n{% endfor %}\nb\n", "{% if yes -%}\n\n  a\n\n{%- endif %}\nb",
    "a {% set x = 1 %}\n  {% set y = 2 %} b\n\t{% set z = 3 %}\nc", "{{ '{{' }} }} %} #} { % {", "{%if yes%}{{n}}{%endif%}", "line\n    {{- n }}\n    {{ n -}}\n    end",
    "{% set x = 'a\nb' %}{{ x }}", "{{ {\n'a': 1,\n'b': [1,\n2]\n} }}", "a\u3000\n\u3000{%- if yes %}b{% endif -%}\u3000c", "\u3000{% if yes %}b{% endif %}",
    "{% for m in people %}{% if loop.first and m.name == 'Ann' %}\n  {%- set first = m.name %}\n{%- else %}\n  {{- m.name }}\n{%- endif %}{% endfor %}!", "", "\n", "\n\n", "plain {text}",
]

# Templates in the style of public ones; each uses a feature that the others do not.
TEMPLATES = {
    "chatml": "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
              "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    "headers with a date": """{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] if messages[0]['content'] is string else messages[0]['content'][0].text %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = "" %}
{%- endif %}
{{- "<|start|>system<|end|>\\n\\nToday Date: " + date_string + "\\n\\n" }}
{%- if tools is not none %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system | trim }}{{- "<|eot|>" }}
{%- for message in messages %}
    {%- if 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("one call at once") }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start|>assistant<|end|>{"name": "' + call.name + '", "parameters": ' + (call.arguments | tojson) + '}<|eot|>' }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start|>ipython<|end|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}{{- message.content | tojson }}{%- else %}{{- message.content }}{%- endif %}
        {{- "<|eot|>" }}
    {%- else %}
        {{- '<|start|>' + message['role'] + '<|end|>\\n\\n' + message['content'] | trim + '<|eot|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start|>assistant<|end|>\\n\\n' }}
{%- endif %}
""",
    "instructions with tools": """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("Roles must alternate user/assistant") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}{{- '"' + key + '": "' + val + '"' }}{%- else %}{{- '"' + key + '": ' + val|tojson }}{%- endif %}
                    {%- if not loop.last %}{{- ", " }}{%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
            {%- endfor %}
            {{- "[/TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id|length != 9 %}{{- raise_exception("ids have 9 characters") }}{%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" + eos_token }}{%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- elif message["role"] == "tool" %}
        {{- '[RESULTS] {"content": ' + message.content|string + "}[/RESULTS]" }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported") }}
    {%- endif %}
{%- endfor %}
""",
    "turns of a model": """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}{%- set first_user_prefix = messages[0]['content'] + '

' -%}{%- else -%}{%- set first_user_prefix = messages[0]['content'][0]['text'] + '

' -%}{%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '
' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}{{ '<start_of_image>' }}{%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>
' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model
'}}
{%- endif -%}
""",
    "bars": "{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}{{'<|system|>\n' + message['content'] + '<|end|>\n'}}"
            "{% elif message['role'] == 'user' %}{{'<|user|>\n' + message['content'] + '<|end|>\n'}}"
            "{% elif message['role'] == 'assistant' %}{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}{% endif %}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}",
    "reasoning dropped": "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}"
            "{% set ns = namespace(is_first=false, is_tool=false, system_prompt='') %}"
            "{%- for message in messages %}{%- if message['role'] == 'system' %}{% set ns.system_prompt = message['content'] %}{%- endif %}{%- endfor %}"
            "{{bos_token}}{{ns.system_prompt}}"
            "{%- for message in messages %}{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}{{'<｜User｜>' + message['content']}}{%- endif %}"
            "{%- if message['role'] == 'assistant' and message['content'] is not none %}{% set content = message['content'] %}"
            "{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}{{'<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>'}}{%- endif %}{%- endfor -%}"
            "{% if add_generation_prompt and not ns.is_tool %}{{'<｜Assistant｜><think>\\n'}}{% endif %}",
    "reasoning of the last turn": """{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}{%- set content = message.content %}{%- else %}{%- set content = '' %}{%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if '</think>' in content %}{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or reasoning_content) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}{{- '\\n' }}{%- endif %}
                {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
                {{- '<tool_call>\\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}{{- tool_call.arguments }}{%- else %}{{- tool_call.arguments | tojson }}{%- endif %}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' }}{{- content }}{{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
""",
    "images first": "{% for message in messages %}{% if message['role'] != 'system' %}{{ message['role'].upper() + ': '}}{% endif %}"
            "{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>\n' }}{% endfor %}"
            "{% if message['role'] != 'assistant' %}{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}{{ content['text'] + ' '}}{% endfor %}"
            "{% else %}{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}{% generation %}{{ content['text'] + ' '}}{% endgeneration %}{% endfor %}{% endif %}{% endfor %}"
            "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}",
    "utterances": "<|im_start|>{% for message in messages %}{{message['role'] | capitalize}}{% if message['content'][0]['type'] == 'image' %}{{':'}}{% else %}{{': '}}{% endif %}"
            "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n"
            "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}",
    "numbered pictures": "{% set image_count = namespace(value=0) %}{% for message in messages %}"
            "{% if loop.first and message['role'] != 'system' %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}<|im_start|>{{ message['role'] }}\n"
            "{% if message['content'] is string %}{{ message['content'] }}<|im_end|>\n{% else %}{% for content in message['content'] %}"
            "{% if content['type'] == 'image' or 'image' in content or 'image_url' in content %}{% set image_count.value = image_count.value + 1 %}"
            "{% if add_vision_id %}Picture {{ image_count.value }}: {% endif %}<|vision_start|><|image_pad|><|vision_end|>"
            "{% elif 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "sections": """{%- macro describe(tool, depth=0) -%}
{{ '  ' * depth }}- {{ tool.name | upper }}: {{ tool.description | default('?', true) | replace('\\n', ' ') }}
{%- for key, spec in tool.parameters.properties | dictsort %}

{{ '  ' * (depth + 1) }}{{ key }} ({{ spec.type }}{% if key in tool.parameters.required %}, needed{% endif %}){% if spec.enum %}: {{ spec.enum | map('tojson') | join(' | ') }}{% endif %}
{%- endfor -%}
{%- endmacro -%}
{{ bos_token }}{% if tools %}{% call_start %}{% endif %}""".replace("{% call_start %}", "# Tools\n{% for t in tools %}{{ describe(t.function, 1) }}\n{% endfor %}") + """
{% for m in messages -%}
<|START|>{{ {'user': 'USER', 'assistant': 'CHATBOT', 'system': 'SYSTEM', 'tool': 'RESULT'}[m.role] | default('OTHER') }}|>
{%- if m.content is string %}{{ m.content | trim }}{% else %}{% for c in m.content %}{{ c.text if c.type == 'text' else '<pic ' ~ loop.index ~ '>' }}{{ ' ' if not loop.last }}{% endfor %}{% endif %}<|END|>
{% endfor %}
{%- if add_generation_prompt %}<|START|>CHATBOT|>{% endif %}""",
    "a default system": """{%- set default = "You are Granola, made of oats.
Today's Date: " + strftime_now('%B %d, %Y') + "." %}
{%- if messages and messages[0].role == 'system' %}{%- set system = messages[0].content %}{%- set messages = messages[1:] %}
{%- else %}{%- set system %}{{ default }}{% if tools %} You have {{ tools | length }} tools.{% endif %}{%- endset %}{%- endif %}
{{- '<|role|>system<|/role|>' + (system if system is string else system | map(attribute='text') | join('')) + '<|end|>\\n' }}
{%- for message in messages %}
    {{- '<|role|>' + message['role'] + '<|/role|>' }}
    {%- if message.role == 'assistant' %}{% generation %}{{ message.content if message.content is string else message.content[0].text }}<|end|>{% endgeneration %}
    {%- else %}{{ message.content if message.content is string else message.content | selectattr('text', 'defined') | map(attribute='text') | join('\\n') | indent(1) }}<|end|>{% endif %}
{{ '\\n' }}
    {%- if loop.last and add_generation_prompt %}{{- '<|role|>assistant<|/role|>' }}{% endif %}
{%- endfor %}
""",
    "words of a role": "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n'}}{% if message['content'] is string %}{{ message['content'] }}{% else %}"
            "{% for content in message['content'] %}{% if content['type'] == 'image' %}{{ '<IMG_CONTEXT>\n' }}{% elif content['type'] == 'video' %}{{ '<video>\n' }}{% elif content['type'] == 'text' %}{{ content['text'] }}{% endif %}{% endfor %}{% endif %}"
            "{{'<|im_end|>\n'}}{% endfor %}{% if add_generation_prompt %}{{'<|im_start|>assistant\n' }}{% endif %}",
}


def result(environment, source, variables):
    try:
        return {"text": environment.from_string(source).render(**variables)}
    except Exception:  # Python's own errors too
        return {"error": True}


def main() -> None:
    environment = jinja_reference.environment()
    sources, lines = [], SNIPPETS.strip("\n").split("\n")
    while lines:
        source = lines.pop(0)
        while source.endswith("\\"):  # an escaped line break
            source += "\n" + lines.pop(0)
        sources.append(source)
    snippets = [{"template": source, **result(environment, source, VARIABLES)} for source in sources + BLOCKS]
    conversations = jinja_reference.conversations()
    templates = [{"name": name, "template": source,
                  "renders": [result(environment, source, variables) for variables in conversations.values()]}
                 for name, source in TEMPLATES.items()]
    goldens = {"now": jinja_reference.NOW, "variables": VARIABLES, "snippets": snippets,
               "conversations": [{"name": name, "variables": variables} for name, variables in conversations.items()],
               "templates": templates}
    path = DATA / "jinja_goldens.json"
    path.write_text(json.dumps(goldens, ensure_ascii=False, indent=0) + "\n")
    print(f"{path.name}: {len(snippets)} snippets, {sum('error' in each for each in snippets)} of them refused; "
          f"{len(templates)} templates, {sum('text' in each for made in templates for each in made['renders'])} texts")


if __name__ == "__main__":
    main()
