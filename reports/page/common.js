"use strict";
// what the scripts of a page share: numbers as text, and drawings in SVG
const digits = (value) => String(Number(value.toPrecision(3)));

function seconds(s) {
  if (s === 0) return "0";
  if (Math.abs(s) >= 1) return `${digits(s)} s`;
  return Math.abs(s) >= 1e-3 ? `${digits(s * 1e3)} ms` : `${digits(s * 1e6)} µs`;
}

function size(bytes) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let k = 0;
  while (bytes >= 1000 && k < units.length - 1) { bytes /= 1000; k += 1; }
  return `${digits(bytes)} ${units[k]}`;
}

const DASHES = ["", "7 4", "2 4", "9 3 2 3"];
const SVG = "http://www.w3.org/2000/svg";

function add(parent, tag, attributes, text) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}

function ticks(low, high) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    for (const lead of [1, 2, 5]) found.push(lead * 10 ** power);
  }
  const inside = found.filter((value) => value >= low * 0.999 && value <= high * 1.001);
  return inside.length > 9 ? inside.filter((value) => Math.abs(Math.log10(value) % 1) < 1e-9) : inside;
}
